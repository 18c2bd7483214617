"""What a head costs from cached features and on the fly, and what the token graph costs by length.

    OMP_NUM_THREADS=1 python -m benchmarks.efficiency [--only heads memory graph] [--clock cpu] [--json]

After GLOT's tables 5, 9 and 16 (parameters, memory, time per batch) and 10 (graph construction against
length). Texts are synthetic, 32 to a batch, and their states are those of the backbone's last block.
`heads`: a training step (forward, backward, Adam) of a head and its classifier on a batch that comes
from the feature store (in memory, float16), against the same step behind a forward pass of the frozen
backbone over the batch's token ids. `memory`: the peak of a fresh process that takes three such steps,
beyond one that imports the same modules; on the fly that includes the backbone. `graph`: building the
token graphs of eight texts of one length, against the whole GLOT step on them (which builds them too) and
against the backbone's pass where it reads texts so long. LoRA, full fine-tuning and the papers' widths:
`benchmarks.tuning`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.backbone_runs import QUIET, synthetic
from benchmarks.measuring import Finding, interleaved, ratio, show, spread
from permafrost.stages.extraction.backbone import Backbone, BackboneConfig, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded, encode
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.stages.fit import to_tensors
from permafrost.stages.heads import GlotHead, HeadConfig, MeanHead, MlpHead, ScorerHead
from permafrost.stages.heads.graph.token_graph import build_graph
from permafrost.stages.heads.pooling import Classifier
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged, offsets_of
from permafrost.storage.readers import FeatureReader, open_reader

BATCH, N_BATCHES, LONG_BATCH = 32, 4, 8
CPU = torch.device("cpu")
HEADS: dict[str, HeadConfig] = {
    "mean": MeanHead(),
    "scorer": ScorerHead(),
    "MLP": MlpHead(),
    "GLOT": GlotHead(),
}
MODES = ("cached", "on the fly")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass
class Setting:
    """Texts, where their states lie, and the backbone, loaded when it is first needed."""

    target: ExtractTarget
    home: Path
    texts: Sequence[str]
    loaded: Backbone | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, home: Path) -> "Setting":
        """The same texts in every process."""
        source = BackboneConfig(source=args.backbone)
        # The last block of any backbone: `half` ends with it.
        config = ExtractConfig(backbone=source, capture=parse_capture("hidden=half"))
        most = 2 * BATCH * N_BATCHES * args.words
        texts = synthetic(most, args.words)[: BATCH * N_BATCHES]
        return cls(resolve_target(config), home, texts)

    @property
    def array(self) -> str:
        """The last block's states."""
        return f"hidden/{self.target.sizes.n_layers}"

    @property
    def backbone(self) -> Backbone:
        """In float32 on the CPU."""
        self.loaded = self.loaded or load_backbone(self.target.files, "float32", "cpu")
        return self.loaded

    def extract(self) -> None:
        """Fill the store."""
        digests = [text_digest(text) for text in self.texts]
        runtime = ExtractRuntime(device="cpu")
        target, home = self.target, self.home
        extract(target, home, self.texts, digests, runtime, QUIET, load=lambda: self.backbone)

    def reader(self) -> FeatureReader:
        """The stored states, in memory."""
        store = FeatureStore.open(store_folder(self.home, self.target.identity.store_id))
        digests = [text_digest(text) for text in self.texts]
        return open_reader(store, self.array, digests, budget_bytes=1 << 30)

    def batches(self) -> list[Encoded]:
        """Token ids, a batch at a time."""
        parts = [self.texts[i : i + BATCH] for i in range(0, len(self.texts), BATCH)]
        return [
            encode(self.target.recipe, self.target.tokenizer, p, self.target.max_length)
            for p in parts
        ]


class Learner:
    """A head, its classifier and Adam."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.head = config.build(width, draw)
        self.classifier = Classifier(self.head.d_out, 2, draw)
        parameters = [*self.head.parameters(), *self.classifier.parameters()]
        self.n_parameters = sum(p.numel() for p in parameters)
        self.adam = torch.optim.Adam(parameters, lr=2e-4)

    def step(self, tokens: Tensor, offsets: Tensor) -> None:
        """One training step; the labels alternate."""
        labels = torch.arange(len(offsets) - 1) % 2
        self.adam.zero_grad()
        loss = functional.cross_entropy(self.classifier(self.head(tokens, offsets)), labels)
        loss.backward()
        self.adam.step()


def cached_epoch(learner: Learner, reader: FeatureReader) -> None:
    """A step on every batch of the store."""
    for _, rows in reader.in_order(BATCH):
        learner.step(*to_tensors(rows, CPU))


def fresh_epoch(setting: Setting, learner: Learner, batches: Sequence[Encoded]) -> None:
    """The same behind the frozen backbone."""
    for encoded in batches:
        states = forward(setting.backbone, encoded, [setting.array], setting.target.recipe)
        learner.step(states[setting.array], torch.from_numpy(encoded.token_ids.offsets))


def epochs(setting: Setting, config: HeadConfig) -> tuple[Learner, dict[str, Callable[[], None]]]:
    """Both ways to go over all batches with one head."""
    learner = Learner(config, setting.target.sizes.d_model)
    calls = {
        "cached": partial(cached_epoch, learner, setting.reader()),
        "on the fly": partial(fresh_epoch, setting, learner, setting.batches()),
    }
    return learner, calls


def heads(args: argparse.Namespace, setting: Setting) -> Iterator[Finding]:
    """(a) time per batch."""
    n_tokens = np.mean([batch.token_ids.offsets[-1] for batch in setting.batches()]) / BATCH
    for name, config in HEADS.items():
        learner, calls = epochs(setting, config)
        for call in calls.values():
            call()
        times = interleaved(calls, args.rounds, clock=CLOCKS[args.clock])
        ms = {mode: 1e3 * median(times[mode]) / N_BATCHES for mode in MODES}
        yield Finding(
            f"{name}: step on the fly / cached",
            ratio(times, "on the fly", "cached"),
            "",
            f"{learner.n_parameters:,} parameters; {BATCH} texts of {n_tokens:.0f} tokens: cached "
            f"{ms['cached']:.1f} ms, on the fly {ms['on the fly']:.1f} ms; "
            f"{spread(times, 'on the fly', 'cached')}",
        )


def memory(args: argparse.Namespace, setting: Setting) -> Iterator[Finding]:
    """(b) peak memory."""
    nothing = child_peak(args, setting, "nothing", "cached")
    for name in HEADS:
        beyond = {mode: child_peak(args, setting, name, mode) - nothing for mode in MODES}
        mib = {mode: n / 2**20 for mode, n in beyond.items()}
        yield Finding(
            f"{name}: peak memory on the fly / cached",
            beyond["on the fly"] / beyond["cached"],
            "",
            f"cached {mib['cached']:,.0f} MiB, on the fly {mib['on the fly']:,.0f} MiB",
        )


def child_peak(args: argparse.Namespace, setting: Setting, head: str, mode: str) -> int:
    """Peak bytes of a fresh process that trains one head."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.efficiency", "--child", head, mode]
    command += ["--backbone", args.backbone, "--words", str(args.words)]
    command += ["--folder", str(setting.home)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.splitlines()[-1])


def run_child(args: argparse.Namespace) -> None:
    """In the child: three batches, and what they took."""
    head, mode = args.child
    setting = Setting.of(args, args.folder)
    if head != "nothing":
        learner = Learner(HEADS[head], setting.target.sizes.d_model)
        if mode == "cached":
            cached_epoch(learner, setting.reader().subset(np.arange(3 * BATCH)))
        else:
            fresh_epoch(setting, learner, setting.batches()[:3])
    # Not ru_maxrss: Linux hands the parent's peak on to a child, also through exec.
    status = Path("/proc/self/status").read_text()
    print(1024 * int(status.split("VmHWM:")[1].split()[0]))


def graph(args: argparse.Namespace, setting: Setting) -> Iterator[Finding]:
    """(c) graph construction by length."""
    width, config = setting.target.sizes.d_model, GlotHead()
    for length in args.lengths:
        # Around four directions, so that one pair in four is connected; sparser graphs become lists of edges.
        rng = np.random.default_rng(length)
        kinds = 1.5 * rng.normal(size=(4, width))
        rows = kinds[rng.integers(0, 4, LONG_BATCH * length)] + rng.normal(
            size=(LONG_BATCH * length, width)
        )
        ragged = Ragged(rows.astype(np.float32), offsets_of(np.full(LONG_BATCH, length)))
        tokens, offsets = to_tensors(ragged, CPU)
        learner = Learner(config, width)
        calls: dict[str, Callable[[], object]] = {
            "graph": partial(build_graph, tokens, offsets, config.tau),
            "step": partial(learner.step, tokens, offsets),
        }
        if length <= setting.target.max_length:
            calls["backbone"] = partial(pass_over, setting, length)
        for call in calls.values():
            call()
        times = interleaved(calls, args.rounds, clock=CLOCKS[args.clock])
        for other in [name for name in calls if name != "graph"]:
            words = {"step": "whole GLOT step", "backbone": "pass of the backbone"}[other]
            yield Finding(
                f"{length} tokens: graph / {words}",
                ratio(times, "graph", other),
                "",
                f"{1e3 * median(times['graph']) / LONG_BATCH:.2f} of "
                f"{1e3 * median(times[other]) / LONG_BATCH:.2f} ms per text; "
                f"{spread(times, 'graph', other)}",
            )


def pass_over(setting: Setting, length: int) -> None:
    """The backbone over texts of one length."""
    ids = np.random.default_rng(0).integers(1000, 2000, LONG_BATCH * length).astype(np.int32)
    offsets = offsets_of(np.full(LONG_BATCH, length))
    encoded = Encoded(
        token_ids=Ragged(ids, offsets),
        span=Ragged(np.ones(len(ids), bool), offsets),
        span_start=np.zeros(LONG_BATCH, np.int64),
        span_end=np.full(LONG_BATCH, length),
        truncated=np.zeros(LONG_BATCH, bool),
    )
    forward(setting.backbone, encoded, [setting.array], setting.target.recipe)


PARTS: dict[str, Callable[[argparse.Namespace, Setting], Iterator[Finding]]] = {
    "heads": heads,
    "memory": memory,
    "graph": graph,
}


def main() -> None:
    """Print the findings of every part asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--words", type=float, default=24, help="median words of a text")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512, 1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        setting = Setting.of(args, Path(folder))
        if {"heads", "memory"} & set(args.only):
            setting.extract()
        findings = [f for part in args.only for f in PARTS[part](args, setting)]
    show(f"efficiency, {args.backbone}", findings, as_json=args.json)


if __name__ == "__main__":
    main()
