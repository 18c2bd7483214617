"""What it costs to train a head, a part of its backbone, or all of it: GLOT's tables 5, 9, 14, 16 and 17.

    OMP_NUM_THREADS=1 python -m benchmarks.tuning [--sizes bert mistral] [--batch 32 8] [--scores HOME]

Random backbones of the papers' widths (BERT: 768; Mistral: 4,096, grouped queries) read texts of one length.
A row is a training step (forward, backward, optimiser) of the project's own trainers in a fresh process, and
its peak memory in another, without the libraries that it imports: GLOT on stored states and on the fly; GLOT
with the last block, from a stored layer or behind the whole backbone; LoRA at rank 64 and full fine-tuning
with the paper's readout. Beside them stand what extraction costs once, after how many epochs over CoLA that
is paid back, and inference behind the backbone by head, time and memory. BERT is built whole. Of Mistral one
and two blocks are, and a line through both gives 32: such figures are marked `~`. Where a model was built
whole, the same line through fewer blocks stands beside it. Without a GPU times are processor seconds of one
thread.
`--scores` adds those of a home in which experiments/papers/glot/efficiency.yaml has run.
"""

import argparse
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Finding, show
from benchmarks.tuned_steps import (
    EXTRACTION,
    HEADS,
    INFERENCE,
    ROWS,
    Spec,
    measure,
    own_peak_of,
    peak_of,
)
from permafrost.stages.corpus.corpus import Corpus
from permafrost.storage.artifacts import ArtifactStore

CACHED, LORA = "GLOT, cached", "LoRA"
N_COLA = 8551
"""Sentences of an epoch."""
BATCH = 32
"""Texts of a batch in the paper; smaller ones where a step of a wide backbone takes minutes."""
CACHED_PAPER = f"{CACHED}, {BATCH} texts"
"""The cached row again, for its memory, where batches are smaller."""
LEAST_TIMES = {"bert": 6.0, "mistral": 100.0}
MOST_GB = 0.42
"""What is promised: LoRA's step / the cached one, and the cached one's memory (GLOT's table 5)."""


@dataclass(frozen=True)
class Size:
    """A backbone of a paper's width."""

    model_type: str
    depth: int
    """Blocks of the paper's."""
    built: tuple[int, ...]
    """Blocks of those that are measured."""
    least: Mapping[str, int]
    """Rows that are measured at so many blocks at most, for their memory."""
    fields: Mapping[str, Any]

    def save(self, folder: Path, n_blocks: int) -> None:
        """Write one with random weights."""
        from tests.stages.extraction.tiny_models import save_model

        fields = {**self.fields, "num_hidden_layers": n_blocks, "initializer_range": 0.02}
        save_model(self.model_type, folder, **fields)


SIZES = {
    "bert": Size(
        "bert",
        12,
        (1, 2, 12),
        {},
        {
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "max_position_embeddings": 512,
        },
    ),
    "mistral": Size(
        "llama",
        32,
        (1, 2),
        {"full": 1},
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 14336,
            "max_position_embeddings": 1024,
            "attention_bias": False,
        },
    ),
}


@dataclass(frozen=True)
class Estimate:
    """A number at the paper's depth."""

    value: float
    is_line: bool = False
    """Whether it was extrapolated."""

    def text(self, digits: int = 3) -> str:
        """With its mark."""
        return f"{'~' * self.is_line}{self.value:,.{digits}g}"


def at_depth(points: Mapping[int, float], depth: int) -> Estimate:
    """What was measured there, or a line through the two largest numbers of blocks, or through zero and
    the only one."""
    if depth in points:
        return Estimate(points[depth])
    known = sorted({0: 0.0, **points}.items() if len(points) == 1 else points.items())
    (low, at_low), (high, at_high) = known[-2:]
    slope = (at_high - at_low) / (high - low)
    return Estimate(at_high + slope * (depth - high), is_line=True)


Found = dict[str, dict[int, dict[str, float]]]
"""Row, blocks, what was measured."""


def measured(args: argparse.Namespace, name: str, folder: Path) -> Found:
    """All rows of one size, in turns."""
    size, found = SIZES[name], defaultdict[str, dict[int, list[dict[str, float]]]](dict)
    tasks = [
        (row, n)
        for row in args.rows
        for n in size.built
        if n <= size.least.get(row, n)
        and (row not in ROWS or ROWS[row].runs_below or n == min(size.built))
    ]
    for n_blocks in sorted({n for _, n in tasks}):
        size.save(folder / str(n_blocks) / "model", n_blocks)
        found[EXTRACTION][n_blocks] = [_child(args, folder, EXTRACTION, n_blocks)]
    for r in range(args.rounds):
        for row, n in tasks[r % len(tasks) :] + tasks[: r % len(tasks)]:
            found[row].setdefault(n, []).append(_child(args, folder, row, n))
    if CACHED in args.rows and args.batch != BATCH:
        n, paper = min(size.built), of_batch(args, BATCH)
        _child(paper, folder, EXTRACTION, n)
        found[CACHED_PAPER][n] = [_child(paper, folder, CACHED, n)]
    return {
        row: {
            n: {key: median(one[key] for one in all_) for key in all_[0]} for n, all_ in by.items()
        }
        for row, by in found.items()
    }


def of_batch(args: argparse.Namespace, batch: int) -> argparse.Namespace:
    """What was asked for, with batches of so many texts."""
    return argparse.Namespace(**{**vars(args), "batch": batch})


def _child(args: argparse.Namespace, folder: Path, row: str, n_blocks: int) -> dict[str, float]:
    """What a fresh process prints; of memory what another one does.

    The C library keeps what was freed, which would count as in use; told to give it back, it takes more time.
    """
    spec = Spec(str(folder / str(n_blocks)), row, args.batch, args.length, args.steps, args.device)
    print(f"{row}, {n_blocks} blocks ...", file=sys.stderr)
    taken = _printed(spec, {})
    if row != EXTRACTION and not args.device.startswith("cuda"):
        again = _printed(spec, {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)})
        taken |= {key: value for key, value in again.items() if key.endswith("peak")}
    return taken


def _printed(spec: Spec, settings: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.tuning"]
    command += ["--child", json.dumps(asdict(spec))]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings}
    )
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Line:
    """A row of the table, at the paper's depth."""

    row: str
    n_backbone: float
    n_head: float
    gigabytes: Estimate
    seconds: Estimate
    epochs: float | None
    """Until the extraction is paid back by training from the cache in its place."""
    check: str
    """The same from fewer blocks, where the model was built whole."""


def trained(by: Mapping[int, Mapping[str, float]], depth: int, grows: bool) -> float:
    """Parameters of the backbone that are trained at a depth; exact, as blocks are alike."""
    numbers = {n: one["n_backbone"] for n, one in by.items()}
    most = max(numbers)
    if not grows:
        return numbers[most]
    if depth in numbers or len(numbers) > 1:
        return at_depth(numbers, depth).value
    # All of one block, and what lies before and behind the blocks.
    return numbers[most] + (depth - most) * by[most]["n_block"]


def lines(args: argparse.Namespace, name: str, found: Found) -> list[Line]:
    """The table of one size."""
    depth = SIZES[name].depth

    def estimate(row: str, key: str, most: int = depth) -> Estimate:
        by = {n: one[key] for n, one in found[row].items() if n <= most}
        if row in ROWS and not ROWS[row].runs_below:
            return Estimate(next(iter(by.values())))
        return at_depth(by, depth)

    once = estimate(EXTRACTION, "seconds").value
    made: list[Line] = []
    for row in _trained_rows(args):
        seconds, peak = estimate(row, "seconds"), estimate(row, "peak")
        saved, check = 0.0, ""
        if ROWS[row].runs_below and ROWS[row].from_cache in args.rows:
            saved = seconds.value - estimate(ROWS[row].from_cache, "seconds").value
        if ROWS[row].runs_below and depth in found[row] and len(found[row]) > 1:
            check = f"{estimate(row, 'seconds', depth - 1).text()} s"
        made.append(
            Line(
                row,
                trained(found[row], depth, ROWS[row].runs_below),
                next(iter(found[row].values()))["n_head"],
                Estimate(peak.value / 1e9, peak.is_line),
                seconds,
                once / saved if saved > 0 else None,
                check,
            )
        )
    return made


def table(args: argparse.Namespace, name: str, found: Found) -> Table:
    """Of one size, in Markdown."""
    size = SIZES[name]
    titles = ("row", "trained: backbone", "head", "peak, GB", "s a batch", "min an epoch of CoLA")
    made = Table(
        *titles, "/ cached", "extraction paid back after", "s from fewer blocks", box=box.MARKDOWN
    )
    n_batches = math.ceil(N_COLA / args.batch)
    all_lines = lines(args, name, found)
    cached = next((line.seconds.value for line in all_lines if line.row == CACHED), math.nan)
    for line in all_lines:
        epoch = Estimate(line.seconds.value * n_batches / 60, line.seconds.is_line)
        paid = "" if line.epochs is None else f"{line.epochs:,.2f} epochs"
        times = Estimate(line.seconds.value / cached, line.seconds.is_line).text()
        made.add_row(
            *(line.row, f"{line.n_backbone:,.0f}", f"{line.n_head:,.0f}", line.gigabytes.text()),
            *(line.seconds.text(), epoch.text(), times, paid, line.check),
        )
    once = at_depth({n: one["seconds"] for n, one in found[EXTRACTION].items()}, size.depth)
    epoch = Estimate(once.value * n_batches / 60, once.is_line)
    made.add_row("extraction, once", "", "", "", once.text(), epoch.text(), "", "", "")
    return made


def _trained_rows(args: argparse.Namespace) -> list[str]:
    return [row for row in args.rows if row in ROWS]


def inference(name: str, found: Found) -> Table:
    """GLOT's table 16: a batch through the backbone and a head, time and memory."""
    size, by = SIZES[name], found[INFERENCE]
    whole = at_depth({n: one["seconds"] for n, one in by.items()}, size.depth)
    titles = ("inference", "backbone, s", "head, s", "with backbone / readout's")
    made = Table(*titles, "peak with backbone, GB", "head's own, GB", box=box.MARKDOWN)
    heads = by[min(by)]
    least = whole.value + heads["readout"]
    for head in HEADS:
        beside = Estimate((whole.value + heads[head]) / least, whole.is_line)
        peak = at_depth({n: one[peak_of(head)] / 1e9 for n, one in by.items()}, size.depth)
        own = f"{heads[own_peak_of(head)] / 1e9:.3g}"
        made.add_row(*(head, whole.text(), f"{heads[head]:.3g}", beside.text(5)), peak.text(4), own)
    return made


def promised(args: argparse.Namespace, name: str, found: Found) -> Iterator[Finding]:
    """What the project promises of a cached step."""
    by_row = {line.row: line for line in lines(args, name, found)}
    cached, lora = by_row.get(CACHED), by_row.get(LORA)
    if cached is None:
        return
    how = f"batches of {args.batch} x {args.length} tokens"
    if lora is not None:
        mark = ", extrapolated" if lora.seconds.is_line else ""
        size = SIZES[name]
        yield Finding(
            f"{name}: LoRA's step / a cached GLOT step",
            lora.seconds.value / cached.seconds.value,
            f">= {LEAST_TIMES[name]:g}" if name in LEAST_TIMES else "",
            f"{size.depth} blocks of {size.fields['hidden_size']:,}{mark}; {how}",
        )
    peak = cached.gigabytes.value
    if CACHED_PAPER in found:
        peak = next(iter(found[CACHED_PAPER].values()))["peak"] / 1e9
    yield Finding(
        f"{name}: peak memory of cached GLOT, GB",
        peak,
        f"<= {MOST_GB}",
        "10^9 bytes, with the stored states of a batch and the optimiser; "
        f"batches of {BATCH} x {args.length} tokens",
    )


def scores(summaries: Iterable[Mapping[str, Any]], n_train: Mapping[str, int]) -> Table:
    """Test scores of an experiment's rows: mean and deviation over seeds, and how many there are.

    Args:
        summaries: of scores.
        n_train: how many examples each task is trained on.
    """
    cells = defaultdict[tuple[str, str], list[float]](list)
    for summary in summaries:
        task = summary["task"]
        column = f"{task}, {summary['metric']}, {n_train[task]:,} to train on"
        cells[summary["method"], column].append(summary["test"])
    tasks = sorted({task for _, task in cells})
    made = Table("test scores x 100", *tasks, box=box.MARKDOWN)
    for method in dict.fromkeys(method for method, _ in cells):
        made.add_row(method, *(_score(cells.get((method, task), [])) for task in tasks))
    return made


def _score(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread} ({len(values)})"


def print_tables(args: argparse.Namespace, name: str, found: Found) -> None:
    """Of one size, as soon as it is measured."""
    size = SIZES[name]
    print(f"\n{name}: {size.depth} blocks of {size.fields['hidden_size']:,}\n")
    print(markdown_of(table(args, name, found)))
    if INFERENCE in found:
        print(markdown_of(inference(name, found)), flush=True)


def markdown_of(made: Table) -> str:
    """Its lines."""
    out = io.StringIO()
    # Wide enough that no row is wrapped, which Markdown does not know.
    Console(file=out, width=400).print(made)
    return out.getvalue().strip() + "\n"


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    every = [*ROWS, INFERENCE]
    parser.add_argument("--rows", nargs="+", choices=every, default=every)
    parser.add_argument(
        "--batch",
        nargs="+",
        type=int,
        default=[BATCH],
        help="of every size, or one for each of --sizes",
    )
    parser.add_argument("--length", type=int, default=128, help="tokens of every text")
    parser.add_argument("--steps", type=int, default=1, help="counted ones of a process")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--scores", type=Path, help="a home with a run of the experiment")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.child:
        print(json.dumps(measure(Spec(**json.loads(args.child)))))
        return
    if len(args.batch) not in (1, len(args.sizes)):
        parser.error(
            f"--batch has {len(args.batch)} numbers for {len(args.sizes)} sizes; give 1 or as many"
        )
    batches = args.batch if len(args.batch) > 1 else args.batch * len(args.sizes)
    asked = {name: of_batch(args, n) for name, n in zip(args.sizes, batches, strict=True)}
    found: dict[str, Found] = {}
    for name, one in asked.items():
        with tempfile.TemporaryDirectory(prefix="permafrost-benchmark-", dir=args.folder) as folder:
            found[name] = measured(one, name, Path(folder))
        if not args.json:
            print_tables(one, name, found[name])
    findings = [f for name, one in asked.items() for f in promised(one, name, found[name])]
    if args.json:
        kept = [{**asdict(f), "met": f.met} for f in findings]
        print(json.dumps({"measured": found, "findings": kept}, indent=1))
        return
    if args.scores is not None:
        store = ArtifactStore(args.scores)
        n_train = {
            m.summary["task"]: Corpus.load(store.open(m.ref)).split("train").num_rows
            for m in store.all("corpus")
        }
        print(markdown_of(scores((m.summary for m in store.all("score")), n_train)))
    texts = ", ".join(f"{name} {one.batch}" for name, one in asked.items())
    how = f"texts of {args.length} tokens a batch: {texts}; {args.device}, rounds: {args.rounds}"
    show(f"tuning: {how}, torch {torch.__version__}", findings, as_json=False)


if __name__ == "__main__":
    main()
