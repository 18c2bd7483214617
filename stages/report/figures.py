"""The figures of results: metric along a dial or by task, learning curves, and curves over layers.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points; numbers are shown times 100.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from stages.report.canvas import drawable
from stages.report.config import CurveAxis
from stages.report.history import LearningCurve
from stages.report.layer_curves import LayerCurve
from stages.report.palette import INK, MUTED, PAPER, Mark
from stages.report.tables import ResultsTable, Row

WIDTH = 480.0
_POINTS = 72.0


def metric_figure(table: ResultsTable, axis: CurveAxis, marks: dict[str, Mark]) -> Figure:
    """Test metric against the dial, one line per method and control, bars of one sd over seeds."""
    placed = sorted(
        (axis.values[c.task], i) for i, c in enumerate(table.columns) if c.task in axis.values
    )
    x = np.array([value for value, _ in placed])
    figure, top = _figure(
        height=270.0 + 5 * len(marks), marks=marks, with_majority=table.has_majority
    )
    axes = figure.add_axes((0.1, 0.135, 0.88, top - 0.135))
    gap = min((b - a for a, b in pairwise(sorted(set(x.tolist())))), default=1.0)
    for place, row in enumerate(_back_to_front(table)):
        # Side by side within a tenth of a step, so that bars of equal results do not hide each other.
        shift = gap * 0.1 * (place / max(len(table.rows) - 1, 1) - 0.5)
        found = [(v + shift, e) for v, i in placed if (e := row.entries[i]) is not None]
        if found:
            mean = np.array([100 * e.mean for _, e in found])
            sd = np.array([100 * (e.sd or 0.0) for _, e in found])
            at = np.array([v for v, _ in found])
            mark = marks[row.method]
            axes.vlines(at, mean - sd, mean + sd, color=mark.colour, linewidth=1.1)
            axes.add_line(_line(mark, at, mean))
    majority = [(v, 100 * m) for v, i in placed if (m := table.columns[i].majority) is not None]
    if majority:
        axes.plot(*np.array(majority).T, color=INK, linewidth=0.9, dashes=(5, 3), zorder=1)
    axes.autoscale_view()
    axes.set_xticks(np.unique(x), [f"{v:g}" for v in np.unique(x)])
    axes.set_xlim(x.min() - 0.35 * gap, x.max() + 0.35 * gap)
    axes.set_xlabel(drawable(axis.label, 70))
    axes.set_ylabel(f"test {drawable(_metric_names(table), 30)} × 100")
    return figure


def tasks_figure(table: ResultsTable, marks: dict[str, Mark]) -> Figure:
    """Test metric by task, one mark per method and control, bars of one sd over seeds."""
    n_tasks = len(table.columns)
    height = 90.0 + n_tasks * (22 + 7 * len(table.rows))
    figure, top = _figure(height=height, marks=marks, with_majority=table.has_majority)
    axes = figure.add_axes((0.24, 46 / height, 0.74, top - 46 / height))
    offsets = np.linspace(-0.34, 0.34, len(table.rows)) if len(table.rows) > 1 else np.zeros(1)
    for offset, row in zip(offsets, table.rows, strict=True):
        mark = marks[row.method]
        for place, found in enumerate(row.entries):
            if found is not None:
                mean, sd = 100 * found.mean, 100 * (found.sd or 0.0)
                axes.hlines(place + offset, mean - sd, mean + sd, color=mark.colour, linewidth=1.1)
                axes.add_line(_line(mark, np.array([mean]), np.array([place + offset])))
    for place, column in enumerate(table.columns):
        if column.majority is not None:
            axes.vlines(
                100 * column.majority, place - 0.42, place + 0.42, color=INK, linewidth=0.9
            ).set_linestyle((0, (5, 3)))
    axes.autoscale_view()
    axes.set_yticks(range(n_tasks), [drawable(c.heading, 20) for c in table.columns])
    axes.set_ylim(n_tasks - 0.5, -0.5)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"test {drawable(_metric_names(table), 30)} × 100")
    return figure


def learning_figure(curves: Sequence[LearningCurve], marks: dict[str, Mark]) -> Figure:
    """Dev metric by epoch, one panel per task, mean over seeds inside the range of the seeds."""
    shown = _of(marks, {c.method for c in curves})
    figure, panels = _panels([c.task for c in curves], shown, "epoch")
    for task, axes in panels.items():
        by_method = {c.method: c for c in curves if c.task == task}
        for name in reversed([name for name in shown if name in by_method]):
            curve, mark = by_method[name], marks[name]
            axes.fill_between(
                curve.epochs,
                100 * curve.low,
                100 * curve.high,
                color=mark.colour,
                alpha=0.14,
                linewidth=0,
            )
            axes.add_line(_line(mark, curve.epochs, 100 * curve.mean, small=True))
        axes.autoscale_view()
    return figure


def layer_figure(curves: Sequence[LayerCurve], marks: dict[str, Mark]) -> Figure:
    """Score by layer, one panel per task, one line per method; scores of tasks share an axis."""
    shown = _of(marks, {c.method for c in curves})
    figure, panels = _panels([c.task for c in curves], shown, "layer")
    for task, axes in panels.items():
        by_method = {c.method: c for c in curves if c.task == task}
        for name in reversed([name for name in shown if name in by_method]):
            curve = by_method[name]
            axes.add_line(_line(marks[name], curve.layers, 100 * curve.scores, small=True))
        axes.autoscale_view()
    return figure


def _of(marks: dict[str, Mark], names: set[str]) -> dict[str, Mark]:
    return {name: mark for name, mark in marks.items() if name in names}


def _panels(
    tasks: Sequence[str], shown: dict[str, Mark], below: str
) -> tuple[Figure, dict[str, Axes]]:
    """A figure with one panel per task, two across, all of one scale."""
    unique = list(dict.fromkeys(tasks))
    n_across = min(2, len(unique))
    n_down = -(-len(unique) // n_across)
    legend_height = 16 * -(-len(shown) // 3) + 14
    height = legend_height + n_down * 190 + 24.0
    figure, top = _figure(height=height, marks=shown, with_majority=False)
    grid = figure.add_gridspec(
        n_down,
        n_across,
        left=0.085,
        right=0.985,
        top=top - 16 / height,
        bottom=42 / height,
        hspace=0.3,
        wspace=0.1,
    )
    panels: dict[str, Axes] = {}
    first: Axes | None = None
    for i, task in enumerate(unique):
        axes = figure.add_subplot(grid[i // n_across, i % n_across], sharex=first, sharey=first)
        first = first or axes
        axes.set_title(drawable(task, 30), color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.tick_params(labelleft=i % n_across == 0, labelbottom=i >= len(unique) - n_across)
        panels[task] = axes
    figure.supxlabel(below, y=6 / height, fontsize=10.5, color=MUTED, va="bottom")
    return figure, panels


def _back_to_front(table: ResultsTable) -> list[Row]:
    return list(reversed(table.rows))


def _metric_names(table: ResultsTable) -> str:
    return ", ".join(dict.fromkeys(c.metric for c in table.columns))


def _line(mark: Mark, x: np.ndarray, y: np.ndarray, *, small: bool = False) -> Line2D:
    line = Line2D(
        x,
        y,
        color=mark.colour,
        marker=mark.marker,
        markersize=4 if small else 6,
        markerfacecolor=mark.colour if mark.filled else PAPER,
        markeredgecolor=mark.colour,
        linewidth=1.2 if small else 1.6,
        zorder=3 if mark.dashes else 4,
    )
    if mark.dashes:
        line.set_dashes(mark.dashes)
    return line


def _figure(height: float, marks: dict[str, Mark], with_majority: bool) -> tuple[Figure, float]:
    """A figure with its legend along the top, and where the room below the legend ends (0 to 1)."""
    figure = Figure(figsize=(WIDTH / _POINTS, height / _POINTS), dpi=_POINTS)
    handles = [_line(mark, np.zeros(0), np.zeros(0)) for mark in marks.values()]
    names = [drawable(name, 20) for name in marks]
    if with_majority:
        majority = Line2D([], [], color=INK, linewidth=0.9)
        majority.set_dashes((5, 3))
        handles.append(majority)
        names.append("majority class")
    n_across = 4 if max(map(len, names)) <= 12 else 3
    figure.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=n_across,
        fontsize=9.5,
        handlelength=2.4,
        columnspacing=1.4,
        labelspacing=0.35,
        borderaxespad=0.2,
    )
    n_down = -(-len(names) // n_across)
    return figure, 1 - (n_down * 14.5 + 10) / height
