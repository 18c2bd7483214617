"""Curves over the layers of a backbone: one score per (method, task, layer), read from a tidy table.

Curves of all probes are in one figure, so that no two have the same method and task.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.frame import line, marks_of, two_across
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.palette import INK, Mark
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

LAYER_CURVES = pa.schema(
    [
        pa.field("probe", pa.string()),
        pa.field("method", pa.string()),
        pa.field("task", pa.string()),
        pa.field("layer", pa.int64()),
        pa.field("score", pa.float64()),
    ]
)
"""Columns of a table of layer curves; scores are fractions, and higher is better."""


@dataclass(frozen=True)
class LayerCurve:
    """Score by layer of one method on one task."""

    probe: str
    """The probe that measured it."""
    method: str
    task: str
    layers: Int64[np.ndarray, " n_layers"]
    """Ascending and unique."""
    scores: Float64[np.ndarray, " n_layers"]

    @property
    def best(self) -> int:
        """Index of the best layer; the first one if several print the same."""
        shown = [hundredths(score) for score in self.scores]
        return shown.index(hundredths(self.scores.max()))


@dataclass(frozen=True)
class LayerTable:
    """The curves of one task, one row per layer and one column per method."""

    task: str
    curves: tuple[LayerCurve, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of all methods, ascending."""
        return tuple(sorted({int(layer) for curve in self.curves for layer in curve.layers}))

    def rows(self) -> list[tuple[int, list[tuple[float | None, bool]]]]:
        """Each layer with every curve's score (None if it has none) and whether that is the curve's best."""
        cells = [
            {
                int(layer): (float(score), i == curve.best)
                for i, (layer, score) in enumerate(zip(curve.layers, curve.scores, strict=True))
            }
            for curve in self.curves
        ]
        return [(layer, [c.get(layer, (None, False)) for c in cells]) for layer in self.layers]


def read_layer_curves(table: pa.Table) -> tuple[LayerCurve, ...]:
    """One curve per (task, method), each in order of first appearance.

    Raises:
        InputError: the table has no rows, columns other than `LAYER_CURVES`, a value that is missing or not
            finite, or a layer twice.
    """
    rows = _checked(table)
    columns = [rows.column(name).to_pylist() for name in LAYER_CURVES.names]
    by_task: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for probe, method, task, layer, score in zip(*columns, strict=True):
        by_task.setdefault(task, {}).setdefault((probe, method), {})[layer] = score
    return tuple(
        LayerCurve(
            probe=probe,
            method=method,
            task=task,
            layers=np.array(sorted(scores), dtype=np.int64),
            scores=np.array([scores[layer] for layer in sorted(scores)], dtype=np.float64),
        )
        for task, curves in by_task.items()
        for (probe, method), scores in curves.items()
    )


def layer_tables(curves: Sequence[LayerCurve]) -> tuple[LayerTable, ...]:
    """The curves by task."""
    tasks = dict.fromkeys(curve.task for curve in curves)
    return tuple(LayerTable(task, tuple(c for c in curves if c.task == task)) for task in tasks)


def layer_description(curves: Sequence[LayerCurve]) -> str:
    """Alternative text of the figure: the best layer of every curve. The tables below it have all numbers."""
    best = "; ".join(
        f"{c.method} on {c.task} {c.scores[c.best]:.1%} at layer {c.layers[c.best]}" for c in curves
    )
    return f"Line charts, one per task: score by layer for each method. Best: {best}."


def _checked(table: pa.Table) -> pa.Table:
    names = LAYER_CURVES.names
    if sorted(table.column_names) != sorted(names) or table.num_rows == 0:
        raise InputError(
            f"layer curves have {table.num_rows} rows and the columns {table.column_names}, expected rows "
            f"with {names}; leave them out of the report, or give them so"
        )
    try:
        rows = table.select(names).cast(LAYER_CURVES)
    except pa.ArrowException as error:
        raise InputError(
            f"layer curves hold {dict(zip(table.column_names, map(str, table.schema.types), strict=True))}, "
            f"expected texts, a whole number and a number: {error}"
        ) from error
    for name in names:
        if rows.column(name).null_count:
            raise InputError(f"layer curves lack the {name} of {rows.column(name).null_count} rows")
    scores = rows.column("score").to_numpy()
    if not np.isfinite(scores).all():
        row = int((~np.isfinite(scores)).argmax())
        raise InputError(
            f"the score in row {row + 1} of the layer curves is {scores[row]}; find out why, or leave "
            "this layer out"
        )
    points = zip(
        *(rows.column(name).to_pylist() for name in ("method", "task", "layer")), strict=True
    )
    (point, n), *_ = Counter(points).most_common(1)
    if n > 1:
        raise InputError(
            f"layer curves have {n} scores of {quoted(point[0])} on {quoted(point[1])} at layer "
            f"{point[2]}; average them, or name one of the methods differently"
        )
    return rows


def layer_figure(curves: Sequence[LayerCurve], marks: dict[str, Mark]) -> Figure:
    """Score by layer, one panel per task, one line per method; all panels share their axes."""
    shown = marks_of(marks, {c.method for c in curves})
    figure, panels = _panels([c.task for c in curves], shown, "layer")
    for task, axes in panels.items():
        by_method = {c.method: c for c in curves if c.task == task}
        for name in reversed([name for name in shown if name in by_method]):
            curve = by_method[name]
            axes.add_line(line(marks[name], curve.layers, 100 * curve.scores, small=True))
        axes.autoscale_view()
    return figure


def _panels(
    tasks: Sequence[str], shown: dict[str, Mark], below: str
) -> tuple[Figure, dict[str, Axes]]:
    """A figure with one panel per task, two in a row, with shared axes."""
    unique = list(dict.fromkeys(tasks))
    figure, cells = two_across(
        len(unique), shown, below, row=190.0, foot=24.0, left=0.085, hspace=0.3, wspace=0.1
    )
    panels: dict[str, Axes] = {}
    first: Axes | None = None
    for cell, task in zip(cells, unique, strict=True):
        axes = figure.add_subplot(cell, sharex=first, sharey=first)
        first = first or axes
        axes.set_title(drawable(task, 30), color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        is_lowest = task in unique[-2:]
        axes.tick_params(labelleft=cell.is_first_col(), labelbottom=is_lowest)
        panels[task] = axes
    return figure, panels


def layers_table(by_layer: LayerTable) -> PlainTable:
    """Score by layer of every method of a task."""
    return PlainTable(
        f"{by_layer.task}: score by layer, × 100",
        ("layer", *(curve.method for curve in by_layer.curves)),
        tuple(
            (
                str(layer),
                *(DASH if score is None else hundredths(score) for score, _ in cells),
            )
            for layer, cells in by_layer.rows()
        ),
        n_names=1,
    )
