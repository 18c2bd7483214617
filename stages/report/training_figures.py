"""The figures of training: learning curves of fits, and reconstruction errors of pretrainings.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.frame import framed, legend_height, line, of
from permafrost.stages.report.history import LearningCurve, Quantity
from permafrost.stages.report.palette import CONTROL, INK, MUTED, Mark
from permafrost.stages.report.pretraining import Pretraining

_ROW = 158.0
LOG_FROM = 20.0
"""Losses that are positive and differ by more than this factor are drawn on a logarithmic scale."""
_N_MARKERS = 6
"""Along a line; a marker at every epoch would hide a line of a hundred."""
_DEPTHS = {
    "all": Mark(INK, "^", (), filled=True),
    "early": Mark(CONTROL, "o", (1.0, 1.6), filled=True),
    "mid": Mark(MUTED, "s", (4.0, 1.6), filled=True),
    "late": Mark(INK, "^", (), filled=True),
}


def learning_figure(curves: Sequence[LearningCurve], marks: dict[str, Mark]) -> Figure:
    """Loss on train and metric on dev by epoch, one row per (task, loss): mean and range over seeds.

    A ring is the epoch that a fit kept. Metrics are times 100 and share a scale where they are the same.
    """
    shown = of(marks, {c.method for c in curves})
    rows = list(dict.fromkeys((c.task, c.loss, c.metric) for c in curves))
    figure, panels = _rows_of_panels(shown, len(rows))
    first_of_metric: dict[str, Axes] = {}
    for (task, loss, metric), (left, right) in zip(rows, panels, strict=True):
        mine = {c.method: c for c in curves if (c.task, c.loss, c.metric) == (task, loss, metric)}
        _title(left, f"{task} · {loss} on train")
        _title(right, f"{metric} on dev × 100")
        if (first := first_of_metric.setdefault(metric, right)) is not right:
            right.sharey(first)
        for place, name in enumerate(reversed([name for name in shown if name in mine])):
            _draw(left, mine[name], "train_loss", 1, marks[name], place)
            _draw(right, mine[name], "dev_metric", 100, marks[name], place)
            for run in mine[name].runs:
                _ring(right, run.kept, 100 * run.kept_metric, marks[name].colour, 8)
        if _spans_much(mine.values()):
            _log_scale(left)
        for axes in (left, right):
            axes.autoscale_view()
    return figure


def pretraining_figure(pretrainings: Sequence[Pretraining]) -> Figure:
    """Mean squared error of reconstruction by epoch, on train and held out, by depth of the layers.

    A ring is the epoch kept of a layer.
    """
    names = {depth.name for p in pretrainings for depth in p.depths}
    figure, panels = _rows_of_panels(of(_DEPTHS, names), len(pretrainings))
    for pretraining, (left, right) in zip(pretrainings, panels, strict=True):
        _title(left, f"{pretraining.name} · error on train")
        _title(right, "error on held-out texts")
        right.sharey(left)
        right.tick_params(labelleft=False)
        for place, depth in enumerate(pretraining.depths):
            mark = _DEPTHS[depth.name]
            _add(left, mark, pretraining.epochs, depth.train_mse, place)
            _add(right, mark, pretraining.epochs, depth.dev_mse, place)
            for epoch, error in zip(depth.kept_epochs, depth.kept_dev_mse, strict=True):
                _ring(right, epoch, error, mark.colour, 5)
        _log_scale(left)
        for axes in (left, right):
            axes.autoscale_view()
    return figure


def _spans_much(curves: Iterable[LearningCurve]) -> bool:
    losses = np.concatenate([run.points("train_loss")[1] for c in curves for run in c.runs])
    return bool(losses.min() > 0 and losses.max() > LOG_FROM * losses.min())


def _log_scale(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.autoscale_view()
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 3.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _rows_of_panels(shown: dict[str, Mark], n_rows: int) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """A figure with two panels in each row, a title above each and epochs below."""
    height = legend_height(list(shown)) + n_rows * _ROW + 12.0
    figure, top = framed(height, shown, ())
    grid = figure.add_gridspec(
        n_rows,
        2,
        left=0.085,
        right=0.99,
        top=top - 18 / height,
        bottom=40 / height,
        hspace=0.42,
        wspace=0.19,
    )
    panels: list[tuple[Axes, Axes]] = []
    for row in range(n_rows):
        left = figure.add_subplot(grid[row, 0])
        right = figure.add_subplot(grid[row, 1], sharex=left)
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        panels.append((left, right))
    figure.supxlabel("epoch", y=6 / height, fontsize=10.5, color=MUTED, va="bottom")
    return figure, panels


def _title(axes: Axes, text: str) -> None:
    axes.set_title(drawable(text, 36), color=INK, fontsize=9.5)


def _draw(
    axes: Axes, curve: LearningCurve, what: Quantity, scale: float, mark: Mark, place: int
) -> None:
    series = curve.series(what)
    low, high = scale * series.low, scale * series.high
    axes.fill_between(series.epochs, low, high, color=mark.colour, alpha=0.14, linewidth=0)
    for epochs, values in curve.tails(what):
        axes.plot(epochs, scale * values, color=mark.colour, linewidth=0.8, alpha=0.7)
    _add(axes, mark, series.epochs, scale * series.mean, place)


def _add(axes: Axes, mark: Mark, x: np.ndarray, y: np.ndarray, place: int) -> None:
    drawn = line(mark, x, y, small=True)
    step = -(-len(x) // _N_MARKERS)
    if step > 1:
        # Lines begin to be marked at different epochs, so that equal ones are told apart.
        drawn.set_markevery((place % step, step))
    axes.add_line(drawn)


def _ring(axes: Axes, x: float, y: float, colour: str, size: float) -> None:
    axes.plot(
        [x],
        [y],
        linestyle="none",
        marker="o",
        markersize=size,
        markerfacecolor="none",
        markeredgecolor=colour,
        markeredgewidth=1.1,
        zorder=5,
    )
