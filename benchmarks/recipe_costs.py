"""Time and memory of a paper's rows against its plainest one, by length of the texts.

    OMP_NUM_THREADS=1 python -m benchmarks.recipe_costs [--paper va] [--lengths 512 2048] [--clock cpu]
        [--device cuda]

The forward pass alone, without a store, on texts of sentences of ten words that have as many tokens each.
Rows of `htp` are those of its table 1 (costs in tables 1 and 2): the mean behind the final norm, Echo's mean,
token prepending and HTP, which leave the pass after the last block but one. Those of `va` are of its table 1:
values of the deep half, PromptEOL, and MetaEOL, which reads a text under eight prompts. Memory is the peak of
a pass in a process of its own, without and with the weights: on a GPU what torch allocated, otherwise growth
of the process's own memory. The backbone has random weights, on which neither depends; --backbone takes a
model instead. `--clock cpu` measures the processor's time.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks.measuring import Finding, interleaved, measured, ratio, show, spread, watched_memory
from benchmarks.training_free import CLOCKS, equally_long, save_random_decoder
from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import (
    EchoRecipe,
    Encoded,
    HtpRecipe,
    MetaEolRecipe,
    PlainRecipe,
    PromptEolRecipe,
    Recipe,
    TokenPrependingRecipe,
    encode,
    resolve_recipe,
)

MIB = 2**20


@dataclass(frozen=True)
class Kind:
    """A row of a table: what is done to texts, and what is read."""

    recipe: Recipe
    capture: str
    """As in an experiment, of hidden states or values."""


def _early(recipe: Recipe) -> Kind:
    """Read after the last block but one, so that the last one does not run."""
    return Kind(recipe, "hidden=-2@mean")


ROWS = {
    "htp": {
        "mean": Kind(PlainRecipe(), "hidden=final@mean"),
        "Echo": Kind(EchoRecipe(spelling="htp"), "hidden=final@mean"),
        "TP mean": _early(TokenPrependingRecipe(spelling="text", source="text_end")),
        "HTP": _early(HtpRecipe()),
    },
    "va": {
        "VA": Kind(PlainRecipe(), "values=half@mean"),
        "PromptEOL": Kind(PromptEolRecipe(), "hidden=final@last"),
        "MetaEOL": Kind(MetaEolRecipe(), "hidden=final@last"),
    },
}
"""By paper; the others are measured against the first."""
PRINTED = {
    ("time", "HTP"): "the paper: 1.35 and 1.25 at 512, 1.12 and 1.09 at 8,192",
    ("time", "Echo"): "the paper: 1.85 and 1.97 at 512, 3.46 and 2.58 at 8,192",
    ("memory", "HTP"): "the paper: 1.10 to 1.18",
    ("memory", "TP mean"): "the paper: 1.01 to 1.06",
    ("memory", "Echo"): "the paper: 4.00",
    ("time", "MetaEOL"): "the paper: 8",
}
"""Of other backbones, for the shape; recomputed from table 2's seconds where it contradicts itself."""


class Row:
    """One row of the table on texts of one length."""

    def __init__(self, backbone: Backbone, kind: Kind, n_texts: int, n_tokens: int) -> None:
        """Args: backbone: what runs. kind: the row. n_texts: in the batch. n_tokens: of each text."""
        self.backbone = backbone
        sizes = backbone.sizes
        self.arrays = parse_capture(kind.capture).arrays(sizes)
        texts = equally_long(backbone, n_texts, n_tokens)
        self.prompts: list[tuple[Recipe, Encoded]] = []
        """Each under which the texts are read: one, but of an ensemble several."""
        for member in kind.recipe.members():
            recipe = resolve_recipe(member, sizes)
            encoded = encode(recipe, backbone.tokenizer, texts, sizes.max_positions)
            assert not encoded.truncated.any(), "a text does not fit into the context"
            self.prompts.append((recipe, encoded))

    def run(self) -> None:
        """One pass over the batch under every prompt."""
        for recipe, encoded in self.prompts:
            forward(self.backbone, encoded, self.arrays, recipe)
        if self.backbone.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def n_tokens(self) -> int:
        """Of a text on average, under all prompts, with what they add."""
        return round(sum(len(e.token_ids.data) / len(e) for _, e in self.prompts))


def loaded(args: argparse.Namespace, folder: Path) -> Backbone:
    """The backbone that was asked for, or one with random weights, made in `folder` once."""
    source = args.backbone or str(_made(args, folder))
    return load_backbone(find_backbone(BackboneConfig(source=source)), args.dtype, args.device)


def _made(args: argparse.Namespace, folder: Path) -> Path:
    place = folder / "random"
    if not place.exists():
        save_random_decoder(place, 4 * max(args.lengths))
    return place


def costs(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """Time of every row, then memory."""
    backbone, kinds = loaded(args, folder), ROWS[args.paper]
    plain, *others = kinds
    for n_tokens in args.lengths:
        rows = {name: Row(backbone, kind, args.texts, n_tokens) for name, kind in kinds.items()}
        runs = {name: row.run for name, row in rows.items()}
        times = interleaved(runs, args.rounds, clock=CLOCKS[args.clock])
        for name in others:
            yield Finding(
                f"{n_tokens} tokens: time, {name} / {plain}",
                ratio(times, name, plain),
                "",
                f"{median(times[name]):.2f} / {median(times[plain]):.2f} s; {rows[name].n_tokens} / "
                f"{rows[plain].n_tokens} tokens; {spread(times, name, plain)}; "
                f"{PRINTED.get(('time', name), 'no time printed')}",
            )
    weights = sum(p.numel() * p.element_size() for p in backbone.model.parameters())
    del backbone
    for n_tokens in args.lengths:
        peaks = {name: _peak(args, folder, name, n_tokens) for name in kinds}
        for name in others:
            whole = (peaks[name] + weights) / (peaks[plain] + weights)
            yield Finding(
                f"{n_tokens} tokens: memory, {name} / {plain}",
                peaks[name] / peaks[plain],
                "",
                f"{peaks[name] / MIB:.0f} / {peaks[plain] / MIB:.0f} MiB, with {weights / MIB:.0f} MiB of "
                f"weights {whole:.2f}; {PRINTED.get(('memory', name), 'no memory printed')}",
            )


def _peak(args: argparse.Namespace, folder: Path, name: str, n_tokens: int) -> int:
    """Bytes that a pass takes, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.recipe_costs", "--child", name]
    command += ["--paper", args.paper]
    source = args.backbone or str(_made(args, folder))
    command += ["--backbone", source, "--lengths", str(n_tokens), "--texts", str(args.texts)]
    command += ["--device", args.device, "--dtype", args.dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def peak_of_pass(short: Row, row: Row) -> int:
    """Bytes beyond the weights at the peak of a pass; a short one before it makes what is made once."""
    short.run()
    if row.backbone.device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        row.run()
        return torch.cuda.max_memory_allocated() - before
    peaks: list[int] = []
    with watched_memory(peaks):
        row.run()
    return peaks[0]


def main(given: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--paper", choices=list(ROWS), default="htp", help="whose rows")
    parser.add_argument("--backbone", help="a model; default: random weights")
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048], help="tokens")
    parser.add_argument("--texts", type=int, default=2, help="in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    rows = [name for kinds in ROWS.values() for name in kinds]
    parser.add_argument("--child", choices=rows, help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.child is not None:
        backbone, kind = loaded(args, Path()), ROWS[args.paper][args.child]
        short, row = (Row(backbone, kind, n, t) for n, t in ((1, 16), (args.texts, *args.lengths)))
        print(peak_of_pass(short, row))
        return
    args.only = ["costs"]
    findings = measured({"costs": costs}, args)
    title = f"recipe_costs, {args.paper}: {args.texts} texts, {args.device}, {args.dtype}, {args.clock} clock"
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
