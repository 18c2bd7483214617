"""Token weights over many texts: by kind of token, by position, and how concentrated they are.

Every number is an unweighted mean over texts, then over seeds. Under mean pooling the numbers are the shares
of the tokens themselves, which therefore serve as the reference.

Axes: T tokens of one text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.frame import DASHES, framed, legend_height, line, marks_of
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.palette import INK, KIND_COLOURS, MUTED, Mark
from permafrost.stages.report.tokens import KINDS, CellWeights, Reading, ReadToken
from permafrost.stages.report.word_classes import (
    PART_NAMES,
    PARTS,
    WORD_CLASSES,
    by_class,
    by_part,
    parts_of,
    relative,
)

N_POSITIONS = 10
SCHEMA = pa.schema(
    [
        pa.field("method", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("n_texts", pa.int64(), nullable=False),
        pa.field("n_tokens", pa.float64(), nullable=False),
        pa.field("entropy", pa.float64(), nullable=False),
        pa.field("effective_tokens", pa.float64(), nullable=False),
        *(pa.field(f"weight_{kind}", pa.float64(), nullable=False) for kind in KINDS),
        *(pa.field(f"tokens_{kind}", pa.float64(), nullable=False) for kind in KINDS),
        *(pa.field(f"position_{i + 1}", pa.float64(), nullable=False) for i in range(N_POSITIONS)),
        *(pa.field(f"weight_{c}_words", pa.float64(), nullable=False) for c in WORD_CLASSES),
        *(pa.field(f"tokens_{c}_words", pa.float64(), nullable=False) for c in WORD_CLASSES),
        *(pa.field(f"weight_{part}", pa.float64(), nullable=False) for part in PARTS),
        *(pa.field(f"tokens_{part}", pa.float64(), nullable=False) for part in PARTS),
    ]
)
"""Columns of `token_summary.parquet`, one row per cell: tokens per text, entropy in nats and its exponential,
shares of the weight and of the tokens by kind, shares of the weight by tenth of the text, and shares of the
weight and of the tokens by class of word and by part of speech."""
_BAR = 19.0
_LEAST = 1 / 16
"""Smallest ratio to the uniform weight that is drawn; smaller ones are drawn here."""
_UNIFORM = "uniform"
_TICKS = {1 / 16: "1/16", 1 / 8: "1/8", 1 / 4: "1/4", 1 / 2: "1/2", 1: "1", 2: "2", 4: "4", 8: "8"}
_NAMES = {"word": "word, or its first token", "continuation": "further tokens of a word"}


@dataclass(frozen=True)
class MethodSummary:
    """One method on one task, over seeds."""

    method: str
    n_seeds: int
    entropy: float
    """Entropy of the weights of a text, in nats."""
    effective_tokens: float
    """The exponential of the entropy: the number of equal weights that have the same entropy."""
    kinds: Float64[np.ndarray, " n_kinds"]
    """Share of the weight by kind of token, in the order of `KINDS`."""
    positions: Float64[np.ndarray, " n_positions"]
    """Share of the weight by tenth of the text."""
    parts: Float64[np.ndarray, " n_parts"]
    """Share of the weight by part of speech, in the order of `PARTS`."""

    @property
    def classes(self) -> Float64[np.ndarray, " n_classes"]:
        """Share of the weight by class of word, in the order of `WORD_CLASSES`."""
        return by_class(self.parts)


@dataclass(frozen=True)
class TaskSummary:
    """All methods of a task on the same texts."""

    task: str
    n_texts: int
    n_tokens: float
    """Mean number of tokens per text."""
    kinds: Float64[np.ndarray, " n_kinds"]
    """Share of the tokens by kind, which is the share of the weight under mean pooling."""
    parts: Float64[np.ndarray, " n_parts"]
    """Share of the tokens by part of speech."""
    methods: tuple[MethodSummary, ...]

    @property
    def classes(self) -> Float64[np.ndarray, " n_classes"]:
        """Share of the tokens by class of word."""
        return by_class(self.parts)


@dataclass(frozen=True)
class _TokenKinds:
    """What the tokens of one text are, and their shares of each kind and part of speech."""

    kinds_T: Int64[np.ndarray, " t"]
    parts_T: Int64[np.ndarray, " t"]
    shares_of_kinds: Float64[np.ndarray, " n_kinds"]
    shares_of_parts: Float64[np.ndarray, " n_parts"]

    @classmethod
    def of(cls, tokens: Sequence[ReadToken]) -> Self:
        kinds_T = np.array([KINDS.index(token.kind) for token in tokens], dtype=np.int64)
        parts_T = parts_of(tokens)
        uniform_T = np.full(len(tokens), 1 / len(tokens))
        return cls(kinds_T, parts_T, by_kind(uniform_T, kinds_T), by_part(uniform_T, parts_T))


def summary_table(weights: Sequence[CellWeights], reading: Reading) -> pa.Table:
    """Numbers of every cell, over the texts for which all cells of its task have weights; columns
    `SCHEMA`."""
    kinds: dict[str, _TokenKinds] = {}
    rows: list[dict[str, str | int | float]] = []
    for cell, texts in _shared_texts(weights, reading):
        shared = [cell.texts[t] for t in texts]
        # All cells of a task weigh the same texts: what a token is does not depend on the cell.
        for text in shared:
            if text.digest not in kinds:
                kinds[text.digest] = _TokenKinds.of(reading[text.digest])
        rows.append(_row(cell, [(text.weights, kinds[text.digest]) for text in shared]))
    return pa.table({name: [row[name] for row in rows] for name in SCHEMA.names}, schema=SCHEMA)


def summaries(table: pa.Table) -> tuple[TaskSummary, ...]:
    """Means over seeds by task and method, in order of first appearance."""
    tasks: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in table.to_pylist():
        tasks.setdefault(row["task"], {}).setdefault(row["method"], []).append(row)
    return tuple(
        TaskSummary(
            task=task,
            n_texts=int(_mean(rows, "n_texts")),
            n_tokens=_mean(rows, "n_tokens"),
            kinds=np.array([_mean(rows, f"tokens_{kind}") for kind in KINDS]),
            parts=np.array([_mean(rows, f"tokens_{part}") for part in PARTS]),
            methods=tuple(_method(method, rows_of) for method, rows_of in methods.items()),
        )
        for task, methods in tasks.items()
        if (rows := next(iter(methods.values())))
    )


def summary_description(tasks: Sequence[TaskSummary]) -> str:
    """Alternative text of the figure. The table below it has all numbers."""
    words = "; ".join(
        f"{s.task}, {s.n_texts} texts: "
        + ", ".join(f"{m.method} {m.effective_tokens:.1f} effective tokens" for m in s.methods)
        for s in tasks
    )
    return (
        "Bar charts, one per task: share of the weight by kind of token for each method. Line charts "
        f"beside them: weight by tenth of the text, relative to uniform. {words}."
    )


def entropy(weights_T: Float64[np.ndarray, " t"]) -> float:
    """Shannon entropy in nats; a weight of 0 adds nothing."""
    positive = weights_T[weights_T > 0]
    return float(-(positive * np.log(positive)).sum())


def by_position(weights_T: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, " n_positions"]:
    """Weight of each tenth of a text.

    A token takes up 1/T of the text; if a boundary falls inside it, its weight is divided in proportion, so
    that uniform weights give a tenth each even for short texts.
    """
    n = len(weights_T)
    cumulated = np.concatenate([[0.0], np.cumsum(weights_T)])
    ends = np.linspace(0, 1, N_POSITIONS + 1)
    return np.diff(np.interp(ends, np.arange(n + 1) / n, cumulated))


def by_kind(
    weights_T: Float64[np.ndarray, " t"], kinds_T: Int64[np.ndarray, " t"]
) -> Float64[np.ndarray, " n_kinds"]:
    """Weight of each kind of token, in the order of `KINDS`; the kind of a token is its place there."""
    return np.bincount(kinds_T, weights=weights_T, minlength=len(KINDS))


def _shared_texts(
    weights: Sequence[CellWeights], reading: Reading
) -> Iterator[tuple[CellWeights, list[int]]]:
    """Every cell with the texts that all cells of its task have and whose tokens are known, if any."""
    shared: dict[str, set[int]] = {}
    for cell in weights:
        texts = {t for t, of_text in cell.texts.items() if of_text.digest in reading}
        shared[cell.task] = shared.get(cell.task, texts) & texts
    for cell in weights:
        if shared[cell.task]:
            yield cell, sorted(shared[cell.task])


def _row(
    cell: CellWeights, texts: Sequence[tuple[Float64[np.ndarray, " _"], _TokenKinds]]
) -> dict[str, str | int | float]:
    entropies = np.array([entropy(weights) for weights, _ in texts])
    kinds = np.mean([by_kind(weights, text.kinds_T) for weights, text in texts], axis=0)
    tokens = np.mean([text.shares_of_kinds for _, text in texts], axis=0)
    positions = np.mean([by_position(weights) for weights, _ in texts], axis=0)
    parts = np.mean([by_part(weights, text.parts_T) for weights, text in texts], axis=0)
    of_tokens = np.mean([text.shares_of_parts for _, text in texts], axis=0)
    return {
        "method": cell.method,
        "task": cell.task,
        "seed": cell.seed,
        "n_texts": len(texts),
        "n_tokens": float(np.mean([len(text.kinds_T) for _, text in texts])),
        "entropy": float(entropies.mean()),
        "effective_tokens": float(np.exp(entropies).mean()),
        **{f"weight_{kind}": float(share) for kind, share in zip(KINDS, kinds, strict=True)},
        **{f"tokens_{kind}": float(share) for kind, share in zip(KINDS, tokens, strict=True)},
        **{f"position_{i + 1}": float(share) for i, share in enumerate(positions)},
        **{
            f"weight_{c}_words": float(w)
            for c, w in zip(WORD_CLASSES, by_class(parts), strict=True)
        },
        **{
            f"tokens_{c}_words": float(n)
            for c, n in zip(WORD_CLASSES, by_class(of_tokens), strict=True)
        },
        **{f"weight_{part}": float(w) for part, w in zip(PARTS, parts, strict=True)},
        **{f"tokens_{part}": float(n) for part, n in zip(PARTS, of_tokens, strict=True)},
    }


def _method(method: str, rows: Sequence[Mapping[str, Any]]) -> MethodSummary:
    return MethodSummary(
        method=method,
        n_seeds=len(rows),
        entropy=_mean(rows, "entropy"),
        effective_tokens=_mean(rows, "effective_tokens"),
        kinds=np.array([_mean(rows, f"weight_{kind}") for kind in KINDS]),
        positions=np.array([_mean(rows, f"position_{i + 1}") for i in range(N_POSITIONS)]),
        parts=np.array([_mean(rows, f"weight_{part}") for part in PARTS]),
    )


def _mean(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    return float(np.mean([row[column] for row in rows]))


def summary_figure(tasks: Sequence[TaskSummary], marks: dict[str, Mark]) -> Figure:
    """One row per task: share of the weight by kind of token, and weight by tenth of the text."""
    shown = marks_of(marks, {m.method for s in tasks for m in s.methods})
    heights = [max(_BAR * (1 + len(s.methods)), 95.0) for s in tasks]
    top_room = legend_height([*shown, _UNIFORM]) + 20.0
    height = top_room + sum(h + 30.0 for h in heights) + 34.0
    figure, top = framed(height, shown, (_UNIFORM,))
    figure.legend(
        [Patch(facecolor=colour, linewidth=0) for colour in KIND_COLOURS],
        [_NAMES.get(name, name) for name in KINDS],
        loc="upper left",
        bbox_to_anchor=(0.0, top),
        ncols=len(KIND_COLOURS),
        fontsize=9.5,
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
    at = top_room
    rows: list[tuple[Axes, Axes]] = []
    for summary, tall in zip(tasks, heights, strict=True):
        at += 26.0
        bottom, share = 1 - (at + tall) / height, tall / height
        left = figure.add_axes((0.2, bottom, 0.43, share))
        right = figure.add_axes((0.715, bottom, 0.25, share))
        _bars(left, summary)
        _positions(right, summary, shown)
        rows.append((left, right))
        at += tall + 4.0
    _share_scale([right for _, right in rows])
    for left, right in rows:
        is_last = left is rows[-1][0]
        for axes in (left, right):
            axes.tick_params(labelbottom=is_last)
    figure.text(0.415, 4 / height, "share of the weight, %", color=MUTED, ha="center")
    figure.text(0.84, 4 / height, "place in the text, %", color=MUTED, ha="center")
    return figure


def _bars(axes: Axes, summary: TaskSummary) -> None:
    rows = [("uniform weights", summary.kinds), *((m.method, m.kinds) for m in summary.methods)]
    for place, (_, shares) in enumerate(rows):
        lefts = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
        for left, share, colour in zip(lefts, shares, KIND_COLOURS, strict=True):
            axes.barh(place, 100 * share, left=100 * left, height=0.78, color=colour)
            if share >= 0.06:
                axes.text(
                    100 * (left + share / 2),
                    place,
                    f"{100 * share:.0f}",
                    fontsize=8.5,
                    color=INK,
                    ha="center",
                    va="center_baseline",
                )
    axes.set_yticks(range(len(rows)), [drawable(name, 18) for name, _ in rows], fontsize=9.5)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    _title(axes, f"{summary.task} · {summary.n_texts} texts")


def _positions(axes: Axes, summary: TaskSummary, shown: dict[str, Mark]) -> None:
    places = (np.arange(N_POSITIONS) + 0.5) * 100 / N_POSITIONS
    axes.axhline(1, color=INK, linewidth=0.9, dashes=DASHES, zorder=1)
    for method in reversed(summary.methods):
        axes.add_line(line(shown[method.method], places, _drawn(method.positions), small=True))
    axes.set_yscale("log", base=2)
    axes.autoscale_view()
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    _title(axes, "weight / uniform")


def _share_scale(panels: Sequence[Axes]) -> None:
    """Set one scale for all, at least from half to twice the uniform weight, so that noise looks like
    noise."""
    limits = np.array([axes.get_ylim() for axes in panels])
    for axes in panels:
        axes.set_ylim(min(limits[:, 0].min(), 0.48), max(limits[:, 1].max(), 2.1))
        axes.yaxis.set_major_locator(FixedLocator(list(_TICKS)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: _TICKS.get(value, ""))


def _drawn(positions: Float64[np.ndarray, " n_positions"]) -> Float64[np.ndarray, " n_positions"]:
    return np.maximum(positions * N_POSITIONS, _LEAST)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(drawable(text, 40), color=INK, fontsize=9.5)


def word_classes_table(summary: TaskSummary) -> PlainTable:
    """Weight of English function and content words under every method, and of one of their tokens as a
    multiple of that under a plain mean; no rows where the texts have no such function words."""
    shares = [(_UNIFORM, summary.classes), *((m.method, m.classes) for m in summary.methods)]
    rows: list[tuple[str, ...]] = []
    for name, classes in shares if summary.classes.all() else ():
        function, content = relative(classes, summary.classes)
        rows.append(
            (
                name,
                *(hundredths(float(share)) for share in classes),
                f"{function:.2f}",
                f"{content:.2f}",
                f"{function / content:.2f}" if content else DASH,
            )
        )
    header = [f"{c} words" for c in WORD_CLASSES], [f"token of a {c} word" for c in WORD_CLASSES]
    return PlainTable(
        f"{summary.task}: share of the weight of English function words, × 100, by a list, and weight of one "
        f"of their tokens relative to uniform, over {summary.n_texts} texts",
        ("method", *header[0], *header[1], "function / content"),
        tuple(rows),
        n_names=1,
    )


def parts_of_speech_table(summary: TaskSummary) -> PlainTable:
    """Weight of a token of each part of speech that the texts have, under every method, as a multiple of that
    under a plain mean; no rows where the texts have no English function words."""
    by_method = [relative(m.parts, summary.parts) for m in summary.methods]
    return PlainTable(
        f"{summary.task}: weight of a token by part of speech relative to uniform, by a list of closed "
        f"classes, over {summary.n_texts} texts",
        ("part of speech", "tokens, × 100", *(m.method for m in summary.methods)),
        tuple(
            (
                PART_NAMES[part],
                hundredths(float(share)),
                *(f"{found[i]:.2f}" for found in by_method),
            )
            for i, (part, share) in enumerate(zip(PARTS, summary.parts, strict=True))
            if share and summary.classes.all()
        ),
        n_names=1,
    )


def token_weights_table(summary: TaskSummary) -> PlainTable:
    """Summary of the token weights of every method on a task."""
    title = (
        f"{summary.task}: share of the weight by kind of token, × 100, over {summary.n_texts} texts"
    )
    return PlainTable(
        title,
        ("method", "effective tokens", "entropy", *KINDS),
        tuple(
            (
                m.method,
                f"{m.effective_tokens:.1f}",
                f"{m.entropy:.2f}",
                *(hundredths(float(share)) for share in m.kinds),
            )
            for m in summary.methods
        ),
        n_names=1,
    )
