"""Methods at several values of a setting: a curve for each, in a panel for each task.

A figure is drawn inside `canvas.drawing()`. Numbers are shown times 100.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.config import SweepAxis
from permafrost.stages.report.entries import Entry, hundredths
from permafrost.stages.report.frame import (
    DASHES,
    MOST,
    bar_ends,
    line,
    named,
    two_across,
    whole,
)
from permafrost.stages.report.palette import INK, Mark, extended
from permafrost.stages.report.tables import Average, Column, ResultsTable, Row

_N_TICKS = 9
"""Most values that are written under the axis of a panel."""
_MARGIN = 0.04
"""Free space at both ends of the axis, as a share of it."""


@dataclass(frozen=True)
class SweptCurve:
    """Methods that differ in one setting alone."""

    name: str
    values: Mapping[str, float]
    """The setting by method, ascending."""


@dataclass(frozen=True)
class _Panel:
    """What one panel shows: a column of the results, or a mean over some."""

    name: str
    metric: str
    """In brackets; empty for a mean."""
    chance: float | None
    values: Mapping[str, tuple[float, float]]
    """Mean and standard deviation over seeds, by method; fractions."""

    @property
    def title(self) -> str:
        """Name and metric."""
        return f"{self.name} {self.metric}".strip()


def sweep_figure(
    axis: SweepAxis,
    curves: Sequence[SweptCurve],
    table: ResultsTable,
    row_marks: Mapping[str, Mark],
) -> Figure:
    """Test metric against a setting, with bars of one sd over seeds.

    Args:
        axis: of the report.
        curves: what lies on it, at least one.
        table: the results; methods that are not there are left out.
        row_marks: of controls and baselines, which keep theirs.
    """
    marks = _marks(curves, table, row_marks)
    panels = _panels(table)
    figure, cells = two_across(
        len(panels),
        marks,
        drawable(axis.label, 70),
        row=178.0,
        foot=28.0,
        left=0.085,
        hspace=0.36,
        wspace=0.2,
    )
    for panel, cell in zip(panels, cells, strict=True):
        axes = figure.add_subplot(cell)
        axes.set_title(named(panel.name, panel.metric, 30), color=INK)
        _draw(axes, axis, curves, panel, marks)
    return figure


def sweep_description(curves: Sequence[SweptCurve], table: ResultsTable) -> str:
    """The points of every curve, panel by panel."""
    lines = [
        f"{curve.name} on {panel.title}: "
        + ", ".join(
            f"{hundredths(panel.values[m][0])} at {x:g}"
            for m, x in curve.values.items()
            if m in panel.values
        )
        for panel in _panels(table)
        for curve in curves
    ]
    return "; ".join(lines)


def _marks(
    curves: Sequence[SweptCurve], table: ResultsTable, row_marks: Mapping[str, Mark]
) -> dict[str, Mark]:
    """A mark for every curve and for every method that lies on none; controls keep theirs."""
    beside = _beside(curves, table)
    names = [c.name for c in curves] + [r.method for r in beside if r.role == "method"]
    others = {r.method: row_marks[r.method] for r in beside if r.role != "method"}
    return extended({}, names) | others


def _beside(curves: Sequence[SweptCurve], table: ResultsTable) -> list[Row]:
    swept = {method for curve in curves for method in curve.values}
    return [row for row in table.rows if row.method not in swept]


def _panels(table: ResultsTable) -> list[_Panel]:
    """The columns of the results, then the means over them."""
    columns = [_column_panel(table, i, column) for i, column in enumerate(table.columns)]
    return [*columns, *(_average_panel(table, average) for average in table.averages)]


def _column_panel(table: ResultsTable, place: int, column: Column) -> _Panel:
    entries: dict[str, Entry] = {
        row.method: e for row in table.rows if (e := row.entries[place]) is not None
    }
    values = {method: (e.mean, e.sd or 0.0) for method, e in entries.items()}
    return _Panel(column.heading, f"({column.metric})", column.chance, values)


def _average_panel(table: ResultsTable, average: Average) -> _Panel:
    means = {row.method: table.average(row, average) for row in table.rows}
    values = {method: (mean, 0.0) for method, mean in means.items() if mean is not None}
    return _Panel(average.heading, "", None, values)


def _draw(
    axes: Axes,
    axis: SweepAxis,
    curves: Sequence[SweptCurve],
    panel: _Panel,
    marks: Mapping[str, Mark],
) -> None:
    every = sorted({x for curve in curves for x in curve.values.values()})
    ends = np.array(_limits(axis, every))
    swept = {method for curve in curves for method in curve.values}
    for method, (mean, _) in panel.values.items():
        if method not in swept:
            level = line(marks[method], ends, np.full(2, 100 * mean), small=True)
            level.set_clip_on(False)
            axes.add_line(level)
    if panel.chance is not None:
        axes.axhline(100 * panel.chance, color=INK, linewidth=0.9, dashes=DASHES, zorder=1)
    for curve in reversed(curves):
        points = [(x, *panel.values[m]) for m, x in curve.values.items() if m in panel.values]
        if points:
            x, mean, sd = np.array(points).T
            mark = marks[curve.name]
            low, high = np.transpose([bar_ends(*one) for one in zip(mean, sd, strict=True)])
            axes.vlines(x, low, high, color=mark.colour, linewidth=1.1)
            axes.add_line(whole(line(mark, x, 100 * mean, small=True)))
    axes.margins(y=0.08)
    axes.autoscale_view(scalex=False)
    axes.set_ylim(top=min(axes.get_ylim()[1], MOST))
    if axis.scale == "log":
        axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    shown = every if len(every) <= _N_TICKS else every[:: -(-len(every) // _N_TICKS)]
    axes.set_xticks(shown, [f"{x:g}" for x in shown])
    axes.set_xlim(*ends)


def _limits(axis: SweepAxis, values: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis, a little beyond the values."""
    if axis.scale == "log":
        low, high = np.log([values[0], values[-1]])
        room = _MARGIN * (high - low)
        return float(np.exp(low - room)), float(np.exp(high + room))
    room = _MARGIN * (values[-1] - values[0])
    return values[0] - room, values[-1] + room
