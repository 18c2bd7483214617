"""Results of probes: curves and choices, from a tidy table to a figure with one panel per task and measure.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from permafrost.stages.metrics.records import POINTS
from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.entries import hundredths
from permafrost.stages.report.frame import line, marks_of, two_across
from permafrost.stages.report.palette import INK, Mark
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

PROBE_CURVES = pa.schema(
    [
        pa.field("probe", pa.string()),
        pa.field("kind", pa.string()),
        POINTS.field("axis"),
        pa.field("method", pa.string()),
        pa.field("task", pa.string()),
        *(POINTS.field(name) for name in POINTS.names if name != "axis"),
    ]
)
"""Columns of `probes.parquet`: the points of all probes, with the probe, method and task of each."""
_ROW = 160.0
_TICKS = 8


@dataclass(frozen=True)
class ProbeCurve:
    """One measure of one method on one task."""

    method: str
    task: str
    measure: str
    unit: str
    x: Float64[np.ndarray, " n"]
    """Ascending and unique."""
    at: tuple[str, ...]
    values: Float64[np.ndarray, " n"]
    chosen: int | None
    """Index of the point chosen on dev; None if nothing was chosen."""


@dataclass(frozen=True)
class Choice:
    """The point chosen on dev for one method on one task, and the measures there."""

    method: str
    task: str
    at: str
    measures: tuple[tuple[str, str], ...]
    """(name, value) of each measure, as printed."""


@dataclass(frozen=True)
class Probe:
    """All curves of one probe."""

    number: int
    """Number from 1, in order of first appearance."""
    name: str
    kind: str
    axis: str
    caption: str
    """What its figure shows, from the kind of probe."""
    curves: tuple[ProbeCurve, ...]

    @property
    def figure(self) -> str:
        """Name of its picture; not the probe's own name, which may have characters that a file's may not."""
        return f"probe_{self.number}_{self.kind}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(curve.task for curve in self.curves))

    @property
    def methods(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(curve.method for curve in self.curves))

    def panels(self) -> dict[tuple[str, str], list[ProbeCurve]]:
        """Curves by task and measure."""
        panels: dict[tuple[str, str], list[ProbeCurve]] = {}
        for task in self.tasks:
            for curve in self.curves:
                if curve.task == task:
                    panels.setdefault((task, curve.measure), []).append(curve)
        return panels

    def choices(self) -> tuple[Choice, ...]:
        """One per task and method for which dev chose."""
        choices: list[Choice] = []
        for task in self.tasks:
            for method in self.methods:
                curves = [c for c in self.curves if (c.task, c.method) == (task, method)]
                chosen = [(c, c.chosen) for c in curves if c.chosen is not None]
                if chosen:
                    curve, place = chosen[0]
                    measures = tuple((c.measure, shown(c.values[i], c.unit)) for c, i in chosen)
                    choices.append(Choice(method, task, curve.at[place], measures))
        return tuple(choices)

    def rows(self, task: str) -> list[tuple[str, list[str]]]:
        """Every point on the axis of a task's curves with the value of each curve there, as printed; "" if a
        curve has none."""
        curves = [c for c in self.curves if c.task == task]
        places = sorted({(x, at) for c in curves for x, at in zip(c.x.tolist(), c.at, strict=True)})
        columns = [
            {x: shown(v, c.unit) for x, v in zip(c.x.tolist(), c.values.tolist(), strict=True)}
            for c in curves
        ]
        return [(at, [column.get(x, "") for column in columns]) for x, at in places]


def shown(value: float, unit: str) -> str:
    """A share times 100 with one decimal; another number with three significant digits, or without decimals
    from 1000 on."""
    if unit == "share":
        return hundredths(value)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text.replace("-", "−")


def read_probes(table: pa.Table, captions: Mapping[str, str]) -> tuple[Probe, ...]:
    """The probes of a table with the columns `PROBE_CURVES`, everything in order of first appearance.

    Args:
        table: all points.
        captions: what the figure of each kind shows.

    Raises:
        InputError: the table has other columns, or a value that is not finite.
    """
    if table.schema.names != PROBE_CURVES.names:
        raise InputError(
            f"a table of probes has the columns {table.schema.names}, expected {PROBE_CURVES.names}"
        )
    rows = table.cast(PROBE_CURVES).to_pylist()
    for i, row in enumerate(rows):
        if not np.isfinite([row["x"], row["value"]]).all():
            raise InputError(
                f"row {i + 1} of the table of probes ({row['measure']} of {quoted(row['method'])} on "
                f"{quoted(row['task'])}) is {row['value']} at {row['x']}; find out why, or leave this "
                "method out"
            )
    probes: list[Probe] = []
    for name in dict.fromkeys(row["probe"] for row in rows):
        rows_of_probe = [row for row in rows if row["probe"] == name]
        groups: dict[tuple[str, str, str], list[dict[str, object]]] = {}
        for row in rows_of_probe:
            groups.setdefault((row["method"], row["task"], row["measure"]), []).append(row)
        curves = tuple(_curve(*key, group) for key, group in groups.items())
        kind, axis = rows_of_probe[0]["kind"], rows_of_probe[0]["axis"]
        caption = captions.get(kind, "")
        probes.append(Probe(len(probes) + 1, name, kind, axis, caption, curves))
    return tuple(probes)


def probe_description(probe: Probe) -> str:
    """Alternative text of the figure: the range of every curve. The tables below it have all numbers."""
    spans = "; ".join(
        f"{c.measure} of {c.method} on {c.task} {shown(c.values.min(), c.unit)} to "
        f"{shown(c.values.max(), c.unit)}"
        for c in probe.curves
    )
    return f"Line charts of {probe.name}, by {probe.axis}: {spans}."


def _curve(method: str, task: str, measure: str, rows: Sequence[dict[str, object]]) -> ProbeCurve:
    ordered = sorted(rows, key=lambda row: float(str(row["x"])))
    chosen = [i for i, row in enumerate(ordered) if row["chosen"]]
    return ProbeCurve(
        method=method,
        task=task,
        measure=measure,
        unit=str(ordered[0]["unit"]),
        x=np.array([row["x"] for row in ordered], dtype=np.float64),
        at=tuple(str(row["at"]) for row in ordered),
        values=np.array([row["value"] for row in ordered], dtype=np.float64),
        chosen=chosen[0] if chosen else None,
    )


def probe_figure(probe: Probe, marks: dict[str, Mark]) -> Figure:
    """Every measure along the axis, two panels in a row; each measure has its own scale, shared by dev and
    test.

    A ring marks the point chosen on dev.
    """
    names = marks_of(marks, set(probe.methods))
    panels = probe.panels()
    figure, places = two_across(
        len(panels), names, probe.axis, row=_ROW, foot=34.0, left=0.09, hspace=0.42, wspace=0.2
    )
    scales: dict[tuple[str, str], Axes] = {}
    for place, ((task, measure), curves) in zip(places, panels.items(), strict=True):
        axes = figure.add_subplot(place)
        scale = task, measure.removeprefix("dev ").removeprefix("test ")
        if (first := scales.setdefault(scale, axes)) is not axes:
            axes.sharey(first)
        _title(axes, probe, task, curves[0])
        for curve in reversed(curves):
            _draw(axes, curve, names[curve.method])
        _ticks(axes, curves)
        axes.autoscale_view()
    return figure


def _title(axes: Axes, probe: Probe, task: str, curve: ProbeCurve) -> None:
    words = f"{curve.measure}{' × 100' if curve.unit == 'share' else ''}"
    if len(probe.tasks) > 1:
        words = f"{drawable(task, 16)} · {words}"
    axes.set_title(words, color=INK)


def _draw(axes: Axes, curve: ProbeCurve, mark: Mark) -> None:
    values = 100 * curve.values if curve.unit == "share" else curve.values
    axes.add_line(line(mark, curve.x, values, small=True))
    if curve.chosen is not None:
        axes.plot(
            curve.x[curve.chosen],
            values[curve.chosen],
            marker="o",
            markersize=10,
            markerfacecolor="none",
            markeredgecolor=mark.colour,
            markeredgewidth=1.1,
        )


def _ticks(axes: Axes, curves: list[ProbeCurve]) -> None:
    places = sorted({place for c in curves for place in zip(c.x.tolist(), c.at, strict=True)})
    step = -(-len(places) // _TICKS)
    # The last point always has a label, as it is the layer or threshold that readers know best.
    kept = places[(len(places) - 1) % step :: step]
    axes.set_xticks([x for x, _ in kept], [drawable(at, 8) for _, at in kept])
