"""Extraction against the bare backbone, and against the loop a researcher writes.

    OMP_NUM_THREADS=2 python -m benchmarks.extraction [--only overhead naive] [--json]

Texts are synthetic: words drawn from a list, log-normal in number. `overhead`: wall time of an
extraction of all hidden states, values and attention rows, tokenised, on disk and fsynced, over the
very batches it ran put through transformers' own sdpa model, which keeps nothing; with the bytes that
were written per second, which bound it on a GPU. `pooled`: the same of the means of all hidden states,
which are few bytes. `naive`: the loop
over the texts in their order, 32 at a time, padded to the longest, eager attention, np.save of every
array as transformers returns it (`careful`: only [CLS] rows, tokens without padding, float16), over
ours. `rows`: attention rows of a random decoder at 2,048 tokens against `output_attentions`.
`plan`: predicting an extraction. `sweep`: mean pooling of all layers from the store against the
backbone. Memory is the peak resident size of a child process beyond that of one that has loaded the
model and run short texts.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.backbone_runs import (
    QUIET,
    WORDS,
    bare_model,
    batches_of,
    run_bare,
    run_ours,
    synthetic,
    target_of,
)
from benchmarks.measuring import Finding, interleaved, measured, ratio, show, spread
from permafrost.stages.embed import EmbedConfig, StoredFeatures, embed_layers
from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.planning import plan_extraction
from permafrost.stages.extraction.recipes import Encoded
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.storage.features.segments import build_table
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged

MEANS = "hidden=all@mean"
LONG, LONG_SIZES = 2048, {"n_layers": 4, "d_model": 256, "n_heads": 8}


def overhead(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """(a) ours over bare."""
    return _over_bare(args, folder, "extraction", target_of(args.backbone))


def pooled(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """Ours over bare where only means are kept."""
    return _over_bare(args, folder, "extraction of means", target_of(args.backbone, MEANS))


def _over_bare(
    args: argparse.Namespace, folder: Path, what: str, target: ExtractTarget
) -> list[Finding]:
    texts = synthetic(args.tokens_each, args.words)
    backbone = load_backbone(target.files, "float32", args.device)
    model = bare_model(target, "sdpa", args.device)
    ours = partial(
        run_ours, target, folder / "home", texts, backbone, args.batch_tokens, args.device
    )
    batches = batches_of(ours, backbone)
    processor: dict[str, list[float]] = {"ours": [], "bare": []}

    def counted(name: str, call: Callable[[], object]) -> None:
        begin = time.process_time()
        call()
        processor[name].append(time.process_time() - begin)

    run_bare(model, batches)
    times = interleaved(
        {
            "ours": partial(counted, "ours", ours),
            "bare": partial(counted, "bare", partial(run_bare, model, batches)),
        },
        args.rounds,
    )
    n_tokens = sum(int(b["input_ids"].numel()) for b in batches)
    seconds = median(times["ours"])
    words = (
        f"{len(batches)} batches, {n_tokens / seconds:,.0f} padded tokens/s, "
        f"{_stored_bytes(folder / 'home') / seconds / 1e6:,.0f} MB/s"
    )
    return [
        Finding(
            f"{what} / bare backbone, wall time",
            ratio(times, "ours", "bare"),
            "<= 1.05" if args.device.startswith("cuda") else "<= 1.15",
            f"{words}; {spread(times, 'ours', 'bare')}",
        ),
        Finding(
            f"{what} / bare backbone, processor time of all threads",
            ratio(processor, "ours", "bare"),
            "",
            spread(processor, "ours", "bare"),
        ),
    ]


def _stored_bytes(home: Path) -> int:
    return sum(p.stat().st_size for p in home.rglob("*") if p.is_file())


def run_naive(target: ExtractTarget, texts: Sequence[str], out: Path, *, careful: bool) -> None:
    """The loop a researcher writes; `careful` keeps only what ours keeps."""
    model = bare_model(target, "eager")
    tokenizer = target.tokenizer
    values: list[torch.Tensor] = []
    for layer in model.encoder.layer:
        layer.attention.self.value.register_forward_hook(lambda _, __, v: values.append(v))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    begin = time.perf_counter()
    for i in range(0, len(texts), 32):
        batch = tokenizer(
            list(texts[i : i + 32]),
            padding=True,
            truncation=True,
            max_length=target.max_length,
            return_tensors="pt",
        )
        values.clear()
        with torch.no_grad():
            result = model(**batch, output_hidden_states=True, output_attentions=True)
        real = batch["attention_mask"].bool()
        kinds = {"hidden": result.hidden_states, "values": values, "rows": result.attentions}
        for kind, tensors in kinds.items():
            for k, tensor in enumerate(tensors):
                kept = tensor
                if careful:
                    kept = tensor[:, :, 0].transpose(1, 2) if kind == "rows" else tensor
                    kept = kept[real].half()
                np.save(out / f"{kind}-{k}-{i}.npy", kept.numpy())
    print(json.dumps({"seconds": time.perf_counter() - begin}))


def child(args: argparse.Namespace, job: str, *options: object) -> dict[str, float]:
    """Run one job in a fresh process; its seconds and the peak bytes of the process."""
    command = [sys.executable, "-m", "benchmarks.extraction", "--child", job]
    command += ["--backbone", args.backbone, "--batch-tokens", str(args.batch_tokens)]
    command += ["--words", str(args.words), *map(str, options)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_child(args: argparse.Namespace) -> None:
    """In the child: do the job and print what it took."""
    target = target_of(args.backbone)
    folder = Path(args.folder)
    report: dict[str, float] = {}
    if args.child in ("ours", "model"):
        backbone = load_backbone(target.files, "float32", "cpu")
        run_ours(target, folder / "small", synthetic(200, args.words, 1), backbone, 256)
        texts = synthetic(args.tokens_each, args.words)
        begin = time.perf_counter()
        if args.child == "ours":
            run_ours(target, folder / "home", texts, backbone, args.batch_tokens)
    elif args.child in ("naive", "careful"):
        texts = synthetic(args.tokens_each, args.words)
        begin = time.perf_counter()
        run_naive(target, texts, folder / "naive", careful=args.child == "careful")
    else:
        texts, begin = [], time.perf_counter()
        _run_rows(target, args.child)
    report["seconds"] = time.perf_counter() - begin
    report["texts"] = len(texts)
    print(json.dumps({**report, "peak": _peak()}))


def _peak() -> float:
    # Not ru_maxrss: Linux hands the parent's peak on to a child, also through exec.
    return 1024.0 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def naive(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """(b) the researcher's loop over ours."""
    names = ("ours", "naive", "careful")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    options = ("--folder", folder, "--tokens-each", args.tokens_each)
    for _ in range(max(args.rounds // 2, 1)):
        for name in names:
            found[name].append(child(args, name, *options))
    model = child(args, "model", *options)["peak"]
    times = {name: [r["seconds"] for r in found[name]] for name in names}
    peak = {name: median(r["peak"] for r in found[name]) - model for name in names}
    findings: list[Finding] = []
    for name in names[1:]:
        promised = name == "naive"
        findings += [
            Finding(
                f"{name} loop / ours, wall time",
                ratio(times, name, "ours"),
                ">= 3" if promised else "",
                f"ours {median(times['ours']):.1f} s; {spread(times, name, 'ours')}",
            ),
            Finding(
                f"{name} loop / ours, peak memory beyond the model",
                peak[name] / peak["ours"],
                ">= 5" if promised else "",
                f"{peak[name] / 2**20:,.0f} MiB / {peak['ours'] / 2**20:,.0f} MiB",
            ),
        ]
    return findings


def save_long_decoder(folder: Path) -> Path:
    """A random decoder that reads LONG tokens."""
    from tests.stages.extraction.tiny_models import save_model

    d_model, n_heads = LONG_SIZES["d_model"], LONG_SIZES["n_heads"]
    return save_model(
        "llama",
        folder,
        hidden_size=d_model,
        num_hidden_layers=LONG_SIZES["n_layers"],
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // 2,
        head_dim=d_model // n_heads,
        intermediate_size=2 * d_model,
        max_position_embeddings=2 * LONG,
    )


def _run_rows(target: ExtractTarget, how: str) -> None:
    ids = np.random.default_rng(0).integers(4, 200, LONG).astype(np.int32)
    if how == "rows-eager":
        model = bare_model(target, "eager")
        with torch.no_grad():
            result = model(torch.from_numpy(ids.astype(np.int64))[None], output_attentions=True)
            rows = [a[0, :, -1] for a in result.attentions]
        assert len(rows) == LONG_SIZES["n_layers"]
        return
    backbone = load_backbone(target.files, "float32", "cpu")
    n = 8 if how == "rows-model" else LONG
    arrays = [a for a in target.arrays if a.startswith("attention_rows")]
    out = forward(backbone, _one_text(ids[:n]), arrays, target.recipe)
    assert len(out) == LONG_SIZES["n_layers"]


def _one_text(ids: np.ndarray) -> Encoded:
    offsets = np.array([0, len(ids)])
    return Encoded(
        token_ids=Ragged(ids, offsets),
        span=Ragged(np.ones(len(ids), bool), offsets),
        span_start=offsets[:1],
        span_end=offsets[1:],
        truncated=np.zeros(1, bool),
    )


def rows(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """(c) attention rows of a long text."""
    source = save_long_decoder(folder / "decoder")
    peaks = {
        how: child(args, how, "--folder", folder, "--backbone", source)["peak"]
        for how in ("rows-model", "rows-ours", "rows-eager")
    }
    beyond = {how: peaks[how] - peaks["rows-model"] for how in ("rows-ours", "rows-eager")}
    target = target_of(str(source))
    backbone, model = load_backbone(target.files, "float32", "cpu"), bare_model(target, "eager")
    ids = np.random.default_rng(0).integers(4, 200, LONG).astype(np.int32)
    arrays = [a for a in target.arrays if a.startswith("attention_rows")]
    inputs = torch.from_numpy(ids.astype(np.int64))[None]

    def ours() -> None:
        forward(backbone, _one_text(ids), arrays, target.recipe)

    def eager() -> None:
        with torch.no_grad():
            model(inputs, output_attentions=True)

    times = interleaved({"ours": ours, "eager": eager}, args.rounds)
    sizes = ", ".join(f"{k} {v}" for k, v in LONG_SIZES.items())
    return [
        Finding(
            f"attention rows at {LONG} tokens: eager / ours, peak memory beyond the model",
            beyond["rows-eager"] / max(beyond["rows-ours"], 2**20),
            ">= 5",
            f"{beyond['rows-eager'] / 2**20:,.0f} MiB / {beyond['rows-ours'] / 2**20:,.0f} MiB; {sizes}",
        ),
        Finding(
            f"attention rows at {LONG} tokens: eager / ours, wall time",
            ratio(times, "eager", "ours"),
            "",
            spread(times, "eager", "ours"),
        ),
    ]


def plan(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """(d) seconds to plan a large corpus, digests included."""
    target = target_of(args.backbone)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(WORDS), (args.texts, 12)).tolist()
    texts = [f"{i} " + " ".join(WORDS[j] for j in pick) for i, pick in enumerate(picks)]

    def planned() -> None:
        plan_extraction(target, folder / "plan", texts, [text_digest(t) for t in texts])

    begin = time.perf_counter()
    planned()
    new = time.perf_counter() - begin
    store = FeatureStore.create_or_open(folder / "plan", target.identity, target.store_sizes, {})
    step = store.record.axes.segment_texts
    with writing(store) as writer:
        for number, at in enumerate(range(0, len(texts), step)):
            part = texts[at : at + step]
            lengths = np.full(len(part), store.record.axes.segment_tokens // step)
            none = np.zeros(len(part), np.int64)
            table = build_table(
                number, store.record.axes, part, lengths, none, lengths, none.astype(bool)
            )
            writer.add_segment(table, number)
    begin = time.perf_counter()
    planned()
    known = time.perf_counter() - begin
    what = f"seconds to plan {args.texts:,} texts"
    return [
        Finding(f"{what}, all new", new, "<= 5"),
        Finding(f"{what}, all in the store without cells", known, "<= 5"),
    ]


def sweep(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """Mean pooling of every layer: from the store, and by running the backbone again."""
    target, texts = target_of(args.backbone), synthetic(args.tokens_each, args.words)
    backbone = load_backbone(target.files, "float32", "cpu")
    ours = partial(run_ours, target, folder / "sweep", texts, backbone, args.batch_tokens)
    batches = batches_of(ours, backbone)
    root = ours().root
    digests = [text_digest(t) for t in texts]
    layers = [a.split("/")[1] for a in target.arrays if a.startswith("hidden")]
    config = EmbedConfig(method="mean", layers=",".join(layers))
    model = bare_model(target, "sdpa")

    def from_store() -> None:
        store = FeatureStore.open(root)
        embed_layers(config, StoredFeatures(store, target.sizes, digests), QUIET)

    def one_pass() -> None:
        with torch.inference_mode():
            for batch in batches:
                mask = batch["attention_mask"]
                states = model(**batch, output_hidden_states=True).hidden_states
                for hidden in states:
                    weights = 1.0 if mask is None else mask[..., None].float()
                    (hidden * weights).sum(1)

    times = interleaved({"store": from_store, "backbone": one_pass}, args.rounds)
    once = ratio(times, "backbone", "store")
    return [
        Finding(
            f"sweep of {len(layers)} layers, a backbone run per layer / from the store",
            once * len(layers),
            ">= 100",
            f"the store anew each time, {median(times['store']):.2f} s",
        ),
        Finding(
            f"sweep of {len(layers)} layers, one backbone run for all / from the store",
            once,
            "",
            spread(times, "backbone", "store"),
        ),
    ]


PARTS: dict[str, Callable[[argparse.Namespace, Path], list[Finding]]] = {
    "overhead": overhead,
    "pooled": pooled,
    "naive": naive,
    "rows": rows,
    "plan": plan,
    "sweep": sweep,
}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--tokens-each", type=int, default=20_000, help="of one timed run")
    parser.add_argument("--texts", type=int, default=1_000_000, help="planned by `plan`")
    parser.add_argument("--words", type=float, default=24, help="median words of a text")
    parser.add_argument("--batch-tokens", type=int, default=ExtractRuntime().batch_tokens)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="of `overhead`")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args)
        return
    findings = measured(PARTS, args)
    title = f"extraction: {args.backbone}, {args.tokens_each:,} tokens, median {args.words:g} words"
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
