"""Batches of a fine-tuning through the backbone: one padded pass over passes by length, and in bfloat16.

    OMP_NUM_THREADS=1 python -m benchmarks.by_length EXPERIMENT TASK [--batch 32] [--rounds 5] [--set ...]

A step is forward and back to graph tokens of normal numbers, on training cases of the experiment's task that
are drawn anew for each round: in one pass, by length, and by length under autocast (`optim.precision:
bfloat16`). Prints the ratios of processor times, tokens with padding over those without, milliseconds for a
token, and how far states and gradients are from those of one pass: in the worst of all batches, where one
text may have nearly all of the gradient, and in bfloat16 for the median text.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import Finding, show
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.recipes import encode, resolve_recipe
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.target import resolve_backbone
from permafrost.stages.finetune.backbone_pass import embedding_width, read_states
from permafrost.stages.finetune.by_length import (
    COMPILED_TOKENS,
    PASS_TOKENS,
    passes,
    read_by_length,
)
from permafrost.stages.graphs.source import GraphSource

Read = Callable[..., torch.Tensor]
VERSIONS: dict[str, Read] = {
    "one pass": read_states,
    "by length": read_by_length,
    "bfloat16": read_by_length,
}


class Batches:
    """Batches of an experiment's training cases, and steps on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        experiment = load_experiment(args.experiment, args.set)
        source = experiment.tasks[args.task]
        assert isinstance(source, GraphSource), f"{args.task} has no graphs"
        corpus = source.build()
        base = resolve_backbone(experiment.backbone, experiment.store_dtype, experiment.codec)
        self.backbone = load_backbone(base.files, experiment.backbone.dtype, "cpu")
        self.recipe = resolve_recipe(experiment.recipe, base.sizes)
        self._texts = encode(
            self.recipe, self.backbone.tokenizer, list(corpus.texts), base.max_length
        )
        self._cases = corpus.case_split("train").column("items").to_pylist()
        self._text_of = corpus.items.column("text").to_numpy()
        self._draw = np.random.default_rng(0)
        self._n_cases: int = args.batch

    def next(self) -> tuple[Encoded, torch.Tensor]:
        """Texts of some cases, and a graph token for each."""
        picked = self._draw.choice(len(self._cases), self._n_cases, replace=False)
        rows = self._text_of[[item for case in picked for item in self._cases[case]]]
        tokens = self._draw.normal(size=(len(rows), embedding_width(self.backbone)))
        return self._texts.take(rows), torch.from_numpy(tokens).float().requires_grad_(True)

    def step(
        self, read: Read, encoded: Encoded, tokens: torch.Tensor, *, low: bool
    ) -> tuple[float, list[torch.Tensor]]:
        """Processor seconds of a step, with or without autocast; its states, and gradients of the tokens."""
        begun = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            z = read(self.backbone, encoded, self.recipe, "mean", tokens)
        gradient = torch.autograd.grad(z.square().sum(), tokens)[0]
        return time.process_time() - begun, [z.detach(), gradient]


def measure(args: argparse.Namespace) -> list[Finding]:
    """The findings of some rounds."""
    batches = Batches(args)
    backbone = batches.backbone
    seconds = dict.fromkeys([*VERSIONS, "scored"], 0.0)
    padded = dict.fromkeys(VERSIONS, 0)
    n_tokens, apart = 0, {name: [0.0, 0.0] for name in VERSIONS}
    low_apart: list[torch.Tensor] = []
    for _ in range(args.rounds):
        encoded, tokens = batches.next()
        lengths = encoded.token_ids.lengths + 1
        n_tokens += int(lengths.sum())
        padded["one pass"] += int(lengths.max()) * len(lengths)
        for name, multiple in (("by length", 1), ("bfloat16", COMPILED_TOKENS)):
            division = passes(lengths, PASS_TOKENS["cpu"], multiple, backbone.sizes.max_positions)
            padded[name] += int(division.widths @ np.diff(division.bounds))
        found: dict[str, list[torch.Tensor]] = {}
        for name, read in VERSIONS.items():
            took, found[name] = batches.step(read, encoded, tokens, low=name == "bfloat16")
            seconds[name] += took
        begun = time.process_time()
        with torch.no_grad():
            read_by_length(backbone, encoded, batches.recipe, "mean", tokens)
        seconds["scored"] += time.process_time() - begun
        for name, others in found.items():
            for at, (one, other) in enumerate(zip(found["one pass"], others, strict=True)):
                apart[name][at] = max(apart[name][at], float((one - other).norm() / one.norm()))
        one, low = found["one pass"][1], found["bfloat16"][1]
        low_apart.append((one - low).norm(dim=1) / one.norm(dim=1))
    milliseconds = {name: 1000 * s / n_tokens for name, s in seconds.items()}
    return [
        Finding("processor time, one pass / by length", seconds["one pass"] / seconds["by length"]),
        Finding("processor time, by length / bfloat16", seconds["by length"] / seconds["bfloat16"]),
        *(Finding(f"tokens padded / real, {name}", n / n_tokens) for name, n in padded.items()),
        *(Finding(f"ms for a token, {name}", ms) for name, ms in milliseconds.items()),
        *(
            Finding(f"distance of {what}, relative, {name}", apart[name][at])
            for name in ("by length", "bfloat16")
            for at, what in enumerate(("states", "gradients"))
        ),
        Finding(
            "distance of a text's gradient, median, bfloat16", float(torch.cat(low_apart).median())
        ),
    ]


def arguments(description: str) -> argparse.ArgumentParser:
    """What says on which batches to measure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("task")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    return parser


def main(given: list[str] | None = None) -> None:
    """Measure and print."""
    args = arguments((__doc__ or "").splitlines()[0]).parse_args(given)
    torch.set_num_threads(1)
    show("a batch of a fine-tuning through the backbone", measure(args), as_json=args.json)


if __name__ == "__main__":
    main()
