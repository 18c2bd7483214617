"""Where the weight goes over many texts, as a figure: bars by kind of token, lines by position.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.frame import DASHES, framed, legend_height, line, of
from permafrost.stages.report.palette import INK, KINDS, MUTED, Mark
from permafrost.stages.report.token_summary import N_POSITIONS, TaskSummary
from permafrost.stages.report.tokens import KINDS as KIND_NAMES

_BAR = 19.0
_LEAST = 1 / 16
"""Of the uniform weight: what is less is drawn here."""
_UNIFORM = "uniform"
_TICKS = {1 / 16: "1/16", 1 / 8: "1/8", 1 / 4: "1/4", 1 / 2: "1/2", 1: "1", 2: "2", 4: "4", 8: "8"}
_NAMES = {"word": "word, or its first token", "continuation": "further tokens of a word"}


def summary_figure(found: Sequence[TaskSummary], marks: dict[str, Mark]) -> Figure:
    """One row per task: share of the weight by kind of token, and weight by tenth of the text."""
    shown = of(marks, {m.method for s in found for m in s.methods})
    heights = [max(_BAR * (1 + len(s.methods)), 95.0) for s in found]
    top_room = legend_height([*shown, _UNIFORM]) + 20.0
    height = top_room + sum(h + 30.0 for h in heights) + 34.0
    figure, top = framed(height, shown, (_UNIFORM,))
    figure.legend(
        [Patch(facecolor=colour, linewidth=0) for colour in KINDS],
        [_NAMES.get(name, name) for name in KIND_NAMES],
        loc="upper left",
        bbox_to_anchor=(0.0, top),
        ncols=len(KINDS),
        fontsize=9.5,
        handlelength=1.2,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
    at = top_room
    rows: list[tuple[Axes, Axes]] = []
    for summary, tall in zip(found, heights, strict=True):
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
    rows = [("every token alike", summary.kinds), *((m.method, m.kinds) for m in summary.methods)]
    for place, (_, shares) in enumerate(rows):
        lefts = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
        for left, share, colour in zip(lefts, shares, KINDS, strict=True):
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
    for found in reversed(summary.methods):
        axes.add_line(line(shown[found.method], places, _drawn(found.positions), small=True))
    axes.set_yscale("log", base=2)
    axes.autoscale_view()
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    _title(axes, "weight / uniform")


def _share_scale(panels: Sequence[Axes]) -> None:
    """One scale for all, of half to twice the uniform weight at least, so that noise looks like noise."""
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
