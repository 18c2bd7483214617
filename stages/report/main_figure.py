"""The main figure: test metric against a parameter of tasks or of methods, or by task.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points; numbers are shown times 100.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.config import ReportConfig, SweepAxis
from permafrost.stages.report.entries import Entry
from permafrost.stages.report.frame import (
    DASHES,
    MOST,
    WIDTH,
    bar_ends,
    framed,
    legend_height,
    line,
    text_width,
    whole,
    wrapped,
)
from permafrost.stages.report.palette import INK, Mark
from permafrost.stages.report.sweep import SweptCurve, sweep_description, sweep_figure
from permafrost.stages.report.tables import ResultsTable, Row

_LABEL_SIZE, _LABEL_CHARS, _GAP = 10.0, 24, 14.0
"""Of the names of tasks: their font, the characters of a line, and what lies beside them."""


def main_figure(
    config: ReportConfig,
    table: ResultsTable,
    row_marks: dict[str, Mark],
    swept: Sequence[SweptCurve] = (),
) -> Figure:
    """The figure that the report's x axis asks for; `swept` lies on the axis of a setting of methods."""
    axis = config.x_axis
    if isinstance(axis, SweepAxis):
        return sweep_figure(axis, swept, table, row_marks)
    if axis.positions is None:
        return tasks_figure(table, row_marks)
    return metric_figure(table, axis.positions, axis.label, row_marks)


def main_description(
    config: ReportConfig, table: ResultsTable, swept: Sequence[SweptCurve] = ()
) -> str:
    """Alternative text of the figure, with its numbers, which are in the results table as well."""
    if isinstance(config.x_axis, SweepAxis):
        return f"Test metric {config.x_axis.how}. {sweep_description(swept, table)}."
    lines = [
        f"{row.method}: "
        + ", ".join(
            f"{e.mean:.1%} at {column.heading}"
            for column, e in zip(table.columns, row.entries, strict=True)
            if e is not None
        )
        for row in table.rows
    ]
    return f"Test metric {config.x_axis.how}. {'; '.join(lines)}."


def metric_figure(
    table: ResultsTable, values: Mapping[str, float], label: str, marks: dict[str, Mark]
) -> Figure:
    """Test metric against a parameter: one line per method and control, with bars of one sd over seeds.

    Args:
        table: the results.
        values: of the parameter, by task.
        label: name of the parameter.
        marks: by method.
    """
    placed = sorted((values[c.task], i) for i, c in enumerate(table.columns) if c.task in values)
    x = np.array([value for value, _ in placed])
    height = legend_height([*marks, *_compared(table)]) + 256.0
    figure, top = framed(height, marks, _compared(table))
    axes = figure.add_axes((0.1, 40 / height, 0.88, top - 40 / height))
    gap = min((b - a for a, b in pairwise(sorted(set(x.tolist())))), default=1.0)
    for place, row in enumerate(_back_to_front(table)):
        # Lines are shifted within a tenth of a step, so that bars of equal results do not hide each other.
        shift = gap * 0.1 * (place / max(len(table.rows) - 1, 1) - 0.5)
        points = [(v + shift, e) for v, i in placed if (e := row.entries[i]) is not None]
        if points:
            mean = np.array([100 * e.mean for _, e in points])
            low, high = np.transpose([_bar(e) for _, e in points])
            at = np.array([v for v, _ in points])
            mark = marks[row.method]
            axes.vlines(at, low, high, color=mark.colour, linewidth=1.1)
            axes.add_line(whole(line(mark, at, mean)))
    chance = [(v, 100 * rate) for v, i in placed if (rate := table.columns[i].chance) is not None]
    if chance:
        axes.plot(*np.array(chance).T, color=INK, linewidth=0.9, dashes=DASHES, zorder=1)
    axes.autoscale_view()
    axes.set_ylim(top=min(axes.get_ylim()[1], MOST))
    axes.set_xticks(np.unique(x), [f"{v:g}" for v in np.unique(x)])
    axes.set_xlim(x.min() - 0.35 * gap, x.max() + 0.35 * gap)
    axes.set_xlabel(drawable(label, 70))
    axes.set_ylabel(_metric_label(table, 30))
    return figure


def tasks_figure(table: ResultsTable, marks: dict[str, Mark]) -> Figure:
    """Test metric by task: one mark per method and control, with bars of one sd over seeds."""
    n_tasks, compared = len(table.columns), _compared(table)
    labels = [wrapped(column.heading, _LABEL_CHARS, 3) for column in table.columns]
    left = _GAP + max(text_width(text, _LABEL_SIZE) for label in labels for text in label)
    row = max(22 + 7 * len(table.rows), 8 + 13 * max(map(len, labels)))
    height = legend_height([*marks, *compared]) + 52.0 + n_tasks * row
    figure, top = framed(height, marks, compared)
    axes = figure.add_axes((left / WIDTH, 46 / height, 0.98 - left / WIDTH, top - 46 / height))
    offsets = np.linspace(-0.34, 0.34, len(table.rows)) if len(table.rows) > 1 else np.zeros(1)
    for offset, row in zip(offsets, table.rows, strict=True):
        mark = marks[row.method]
        for place, number in enumerate(row.entries):
            if number is not None:
                axes.hlines(place + offset, *_bar(number), color=mark.colour, linewidth=1.1)
                mean = np.array([100 * number.mean])
                axes.add_line(whole(line(mark, mean, np.array([place + offset]))))
    for place, column in enumerate(table.columns):
        if column.chance is not None:
            axes.vlines(
                100 * column.chance, place - 0.42, place + 0.42, color=INK, linewidth=0.9
            ).set_linestyle((0, DASHES))
    axes.autoscale_view()
    axes.set_xlim(right=min(axes.get_xlim()[1], MOST))
    axes.set_yticks(range(n_tasks), ["\n".join(label) for label in labels], fontsize=_LABEL_SIZE)
    axes.set_ylim(n_tasks - 0.5, -0.5)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(_metric_label(table, 60))
    return figure


def _bar(number: Entry) -> tuple[float, float]:
    return bar_ends(number.mean, number.sd or 0.0)


def _back_to_front(table: ResultsTable) -> list[Row]:
    return list(reversed(table.rows))


def _metric_label(table: ResultsTable, n_chars: int) -> str:
    """Names the metrics, if there is room for all of them."""
    names = ", ".join(dict.fromkeys(c.metric for c in table.columns))
    return f"test {drawable(names, n_chars) if len(names) <= n_chars else 'metric'} × 100"


def _compared(table: ResultsTable) -> tuple[str, ...]:
    words = table.chance_words
    return (words.row,) if words else ()
