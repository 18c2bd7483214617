"""Time and memory of HTP's rows against the plain mean, by length of the texts (HTP, tables 1 and 2).

    OMP_NUM_THREADS=1 python -m benchmarks.recipe_costs [--lengths 512 2048] [--clock cpu] [--device cuda]

The forward pass alone, without a store, on texts of sentences of ten words that have as many tokens each.
Rows are those of table 1: the mean behind the final norm, Echo's mean, token prepending and HTP, which leave
the pass after the last block but one. Memory is the peak of a pass in a process of its own, without and with
the weights: on a GPU what torch allocated, otherwise growth of the process's own memory. The backbone has
random weights, on which neither depends; --backbone takes a model instead. `--clock cpu` measures the
processor's time.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
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
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import (
    EchoRecipe,
    Encoded,
    HtpRecipe,
    PlainRecipe,
    Recipe,
    TokenPrependingRecipe,
    encode,
    resolve_recipe,
)

MIB = 2**20
PLAIN = "mean"
ROWS: dict[str, Recipe] = {
    PLAIN: PlainRecipe(),
    "Echo": EchoRecipe(spelling="htp"),
    "TP mean": TokenPrependingRecipe(spelling="text", source="text_end"),
    "HTP": HtpRecipe(),
}
"""Those of table 1."""
READ_EARLY = ("TP mean", "HTP")
"""Read after the last block but one, so that the last one does not run."""
PRINTED = {
    ("time", "HTP"): "the paper: 1.35 and 1.25 at 512, 1.12 and 1.09 at 8,192",
    ("time", "Echo"): "the paper: 1.85 and 1.97 at 512, 3.46 and 2.58 at 8,192",
    ("memory", "HTP"): "the paper: 1.10 to 1.18",
    ("memory", "TP mean"): "the paper: 1.01 to 1.06",
    ("memory", "Echo"): "the paper: 4.00",
}
"""Of other backbones, for the shape; recomputed from table 2's seconds where it contradicts itself."""


class Row:
    """One row of the table on texts of one length."""

    def __init__(self, backbone: Backbone, name: str, n_texts: int, n_tokens: int) -> None:
        """Args: backbone: what runs. name: of the row. n_texts: in the batch. n_tokens: of each text."""
        self.backbone = backbone
        sizes = backbone.sizes
        self.recipe = resolve_recipe(ROWS[name], sizes)
        block = sizes.n_layers - 1 if name in READ_EARLY else "final"
        self.array = f"pooled/hidden_mean/{block}"
        texts = equally_long(backbone, n_texts, n_tokens)
        self.encoded: Encoded = encode(
            self.recipe, backbone.tokenizer, texts, backbone.sizes.max_positions
        )
        assert not self.encoded.truncated.any(), "a text does not fit into the context"

    def run(self) -> None:
        """One pass over the batch."""
        forward(self.backbone, self.encoded, [self.array], self.recipe)
        if self.backbone.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def n_tokens(self) -> int:
        """Of a text on average, with what the recipe adds."""
        return round(len(self.encoded.token_ids.data) / len(self.encoded))


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
    backbone = loaded(args, folder)
    for n_tokens in args.lengths:
        rows = {name: Row(backbone, name, args.texts, n_tokens) for name in ROWS}
        runs = {name: row.run for name, row in rows.items()}
        times = interleaved(runs, args.rounds, clock=CLOCKS[args.clock])
        for name in rows:
            if name != PLAIN:
                yield Finding(
                    f"{n_tokens} tokens: time, {name} / {PLAIN}",
                    ratio(times, name, PLAIN),
                    "",
                    f"{median(times[name]):.2f} / {median(times[PLAIN]):.2f} s; {rows[name].n_tokens} / "
                    f"{rows[PLAIN].n_tokens} tokens; {spread(times, name, PLAIN)}; "
                    f"{PRINTED.get(('time', name), 'no time printed')}",
                )
    weights = sum(p.numel() * p.element_size() for p in backbone.model.parameters())
    del backbone
    for n_tokens in args.lengths:
        peaks = {name: _peak(args, folder, name, n_tokens) for name in ROWS}
        for name in ROWS:
            if name != PLAIN:
                whole = (peaks[name] + weights) / (peaks[PLAIN] + weights)
                yield Finding(
                    f"{n_tokens} tokens: memory, {name} / {PLAIN}",
                    peaks[name] / peaks[PLAIN],
                    "",
                    f"{peaks[name] / MIB:.0f} / {peaks[PLAIN] / MIB:.0f} MiB, with {weights / MIB:.0f} MiB "
                    f"of weights {whole:.2f}; {PRINTED['memory', name]}",
                )


def _peak(args: argparse.Namespace, folder: Path, name: str, n_tokens: int) -> int:
    """Bytes that a pass takes, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.recipe_costs", "--child", name]
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
    parser.add_argument("--backbone", help="a model; default: random weights")
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048], help="tokens")
    parser.add_argument("--texts", type=int, default=2, help="in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(ROWS), help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.child is not None:
        backbone = loaded(args, Path())
        short, row = (
            Row(backbone, args.child, n, t) for n, t in ((1, 16), (args.texts, *args.lengths))
        )
        print(peak_of_pass(short, row))
        return
    args.only = ["costs"]
    findings = measured({"costs": costs}, args)
    title = f"recipe_costs: {args.texts} texts, {args.device}, {args.dtype}, {args.clock} clock"
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
