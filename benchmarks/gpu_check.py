"""What runs on this machine's GPU, and how fast: `make gpu-check`.

    python -W ignore -m benchmarks.gpu_check [--rounds 5] [--out FILE]

First the tests of tests/gpu: captures, altered passes, heads, FREEZE!, probes and whole experiments against
the CPU's numbers, resume after a kill, out of memory, two extractions on one device. Then extraction over the
bare backbone (MiniLM, and a random decoder of width 1,024), and GLOT's training step against torch-geometric.
The table is printed and written to benchmarks/results under the card's name. Where torch sees no CUDA device
it says so and exits with 0.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

from benchmarks import extraction, token_graph
from benchmarks.measuring import Finding, markdown
from permafrost.stages.extraction.target import ExtractRuntime

RESULTS = Path(__file__).with_name("results")
WIDE = {"n_layers": 12, "d_model": 1024, "n_heads": 16}


def run_tests(device: str) -> int:
    """The exit code of tests/gpu."""
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "tests/gpu"]
    environment = {**os.environ, "PERMAFROST_CHECK_DEVICE": device}
    return subprocess.run(command, check=False, env=environment).returncode


def measured(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """Extraction of two backbones, then the step of a GLOT head by length."""
    from tests.stages.extraction.tiny_models import save_model

    d_model, n_heads = WIDE["d_model"], WIDE["n_heads"]
    wide = save_model(
        "llama",
        folder / "decoder",
        hidden_size=d_model,
        num_hidden_layers=WIDE["n_layers"],
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // 2,
        head_dim=d_model // n_heads,
        intermediate_size=4 * d_model,
        max_position_embeddings=2048,
        # Far narrower than the tiny models' weights: activations have to fit into float16.
        initializer_range=0.02,
    )
    for name, source, tokens in (
        ("MiniLM", "minilm", args.tokens_each),
        ("decoder, 12 blocks of 1,024", str(wide), args.tokens_each // 4),
    ):
        how = argparse.Namespace(
            backbone=source,
            tokens_each=tokens,
            words=24,
            batch_tokens=ExtractRuntime().batch_tokens,
            rounds=args.rounds,
            device=args.device,
        )
        for measure in (extraction.overhead, extraction.pooled):
            for found in measure(how, folder):
                yield Finding(f"{name}: {found.what}", found.value, found.target, found.detail)
    steps = argparse.Namespace(
        hidden=128,
        device=args.device,
        versions=["literal", "batched"],
        rounds=args.rounds,
        clock="wall",
    )
    for n_tokens in (30, 256, 512):
        for found in token_graph.steps(steps, n_tokens, 4):
            yield Finding(f"GLOT step, {found.what}", found.value, found.target, found.detail)


def main() -> int:
    """Check and measure; the exit code of the checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens-each", type=int, default=200_000, help="of one timed extraction")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--out", type=Path, help="default: benchmarks/results/gpu_<card>_<month>.md"
    )
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: torch sees none, so nothing was checked or measured")
        return 0
    status = run_tests(args.device)
    is_cuda = args.device.startswith("cuda")
    card = torch.cuda.get_device_name(args.device) if is_cuda else args.device
    with tempfile.TemporaryDirectory(prefix="permafrost-gpu-") as folder:
        findings = list(measured(args, Path(folder)))
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    passed = "passed" if status == 0 else f"FAILED (exit code {status})"
    table = markdown(f"{card}: {versions}; tests/gpu {passed}", findings)
    print(table, end="")
    name = re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_")
    out = args.out or RESULTS / f"gpu_{name}_{datetime.date.today():%Y%m}.md"
    out.write_text(f"# GPU check\n\n    make gpu-check\n\n{table}", encoding="utf-8")
    print(f"written to {out}")
    return status


if __name__ == "__main__":
    sys.exit(main())
