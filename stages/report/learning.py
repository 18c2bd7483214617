"""Learning curves: loss on train and metric on dev of the chosen candidate by epoch, over seeds.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from permafrost.stages.metrics.records import EPOCHS
from permafrost.stages.report.cells import Cell, CellResult
from permafrost.stages.report.frame import (
    add_line,
    log_scale,
    marks_of,
    panel_title,
    ring,
    rows_of_panels,
)
from permafrost.stages.report.palette import Mark
from permafrost.storage.errors import CorruptDataError, NotFoundError

Quantity = Literal["train_loss", "dev_metric"]
LOG_FROM = 20.0
"""Losses that are positive and differ by more than this factor are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Run:
    """One fit: all epochs of the candidate that was kept."""

    seed: int
    epochs: Int64[np.ndarray, " n_epochs"]
    """Epochs in the numbering of the fit, ascending."""
    train_loss: Float64[np.ndarray, " n_epochs"]
    dev_metric: Float64[np.ndarray, " n_epochs"]
    """NaN for an epoch without evaluation."""
    kept: int
    """The epoch whose parameters were kept: the best on dev, and the earliest if several are."""
    n_candidates: int
    n_epochs: int
    """Total over all candidates."""

    def points(
        self, what: Quantity
    ) -> tuple[Int64[np.ndarray, " n_points"], Float64[np.ndarray, " n_points"]]:
        """Epochs with a finite value, and the values."""
        values = getattr(self, what)
        finite = np.isfinite(values)
        return self.epochs[finite], values[finite]

    @property
    def kept_metric(self) -> float:
        """The metric on dev after the kept epoch."""
        return float(self.dev_metric[self.epochs == self.kept][0])


@dataclass(frozen=True)
class Series:
    """One quantity over epochs: mean and range over seeds."""

    epochs: Int64[np.ndarray, " n_epochs"]
    """Epochs for which every seed has a value."""
    mean: Float64[np.ndarray, " n_epochs"]
    low: Float64[np.ndarray, " n_epochs"]
    high: Float64[np.ndarray, " n_epochs"]


@dataclass(frozen=True)
class LearningCurve:
    """How one method was trained on one task."""

    method: str
    task: str
    metric: str
    loss: str
    """The loss that was minimised."""
    runs: tuple[Run, ...]
    """One per seed."""

    def series(self, what: Quantity) -> Series:
        """Mean and range over seeds, up to the last common epoch."""
        points = [run.points(what) for run in self.runs]
        common = reduce(np.intersect1d, [epochs for epochs, _ in points])
        values = np.stack([of_run[np.isin(epochs, common)] for epochs, of_run in points])
        return Series(common, values.mean(0), values.min(0), values.max(0))

    def tails(
        self, what: Quantity
    ) -> list[tuple[Int64[np.ndarray, " n_points"], Float64[np.ndarray, " n_points"]]]:
        """Curves of seeds that trained longer than others, from the last common epoch on."""
        last = max(self.series(what).epochs.tolist(), default=0)
        tails = [
            (epochs[epochs >= last], values[epochs >= last])
            for epochs, values in (run.points(what) for run in self.runs)
        ]
        return [(epochs, values) for epochs, values in tails if len(epochs) > 1]


def learning_curves(results: Sequence[CellResult]) -> tuple[LearningCurve, ...]:
    """One curve per (method, task, metric, loss) that was trained in epochs.

    Raises:
        NotFoundError: a history file does not exist.
        CorruptDataError: a history file lacks a column, has no rows, or has no metric on dev.
    """
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for r in results:
        if r.cell.history is not None:
            run, loss = _run(r.cell, r.cell.history)
            group = groups.setdefault((r.cell.method, r.cell.task, r.metrics.metric, loss), [])
            group.append(run)
    return tuple(LearningCurve(*key, tuple(runs)) for key, runs in groups.items())


def learning_description(curves: Sequence[LearningCurve]) -> str:
    """Alternative text of the figure: the kept epoch of every fit, and its metric on dev."""
    kept = "; ".join(
        f"{c.method} on {c.task} "
        + ", ".join(f"{run.kept_metric:.1%} at epoch {run.kept}" for run in c.runs)
        for c in curves
    )
    return (
        "Line charts against epochs, for each task and loss: the loss on train and the metric on dev, mean "
        f"over seeds with the range of the seeds as a band. Kept, by seed: {kept}."
    )


def _run(cell: Cell, path: Path) -> tuple[Run, str]:
    """The candidate that was kept, and its loss."""
    table = _read(cell, path)
    # The history of a fit of a single setting has no candidates.
    alone = "candidate" not in table.column_names
    candidate = (
        np.zeros(table.num_rows, np.int64) if alone else table.column("candidate").to_numpy()
    )
    epoch, loss, dev = (table.column(name).to_numpy().astype(np.float64) for name in EPOCHS.names)
    if not np.isfinite(dev).any():
        raise CorruptDataError(
            f"{path} ({cell.label}) has no metric on dev in any of {len(dev)} epochs; fit it again"
        )
    order = np.lexsort((epoch, candidate))
    best = order[np.nanargmax(dev[order])]
    rows = order[candidate[order] == candidate[best]]
    run = Run(
        seed=cell.seed,
        epochs=epoch[rows].astype(np.int64),
        train_loss=loss[rows],
        dev_metric=dev[rows],
        kept=int(epoch[best]),
        n_candidates=len(np.unique(candidate)),
        n_epochs=len(epoch),
    )
    return run, _tried_loss(table, int(best)) or cell.loss or "loss"


def _tried_loss(table: pa.Table, row: int) -> str | None:
    """The loss of a candidate, where the settings that were tried have one."""
    if "candidate_json" not in table.column_names:
        return None
    settings: Any = json.loads(table.column("candidate_json").to_pylist()[row] or "{}")
    loss = settings.get("loss")
    return loss.get("kind") if isinstance(loss, dict) else loss


def _read(cell: Cell, path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the history of {cell.label} is not at {path}; run the experiment again to fit it"
        ) from error
    except pa.ArrowInvalid as error:
        raise CorruptDataError(
            f"{path} ({cell.label}) is not a readable parquet file: {error}"
        ) from error
    missing = [name for name in EPOCHS.names if name not in table.column_names]
    if missing or table.num_rows == 0:
        raise CorruptDataError(
            f"{path} ({cell.label}) has {table.num_rows} rows and the columns {table.column_names}, "
            f"expected rows with {EPOCHS.names}; fit it again"
        )
    return table


def learning_figure(curves: Sequence[LearningCurve], marks: dict[str, Mark]) -> Figure:
    """Loss on train and metric on dev by epoch, one row per (task, loss, metric): mean and range over seeds.

    A ring marks the epoch that a fit kept. Metrics are times 100; panels of one metric share a scale.
    """
    shown = marks_of(marks, {c.method for c in curves})
    rows = list(dict.fromkeys((c.task, c.loss, c.metric) for c in curves))
    figure, panels = rows_of_panels(shown, len(rows))
    first_of_metric: dict[str, Axes] = {}
    for (task, loss, metric), (left, right) in zip(rows, panels, strict=True):
        by_method = {
            c.method: c for c in curves if (c.task, c.loss, c.metric) == (task, loss, metric)
        }
        panel_title(left, task, f"· {loss} on train")
        panel_title(right, f"{metric} on dev × 100")
        if (first := first_of_metric.setdefault(metric, right)) is not right:
            right.sharey(first)
        for place, name in enumerate(reversed([name for name in shown if name in by_method])):
            _draw(left, by_method[name], "train_loss", 1, marks[name], place)
            _draw(right, by_method[name], "dev_metric", 100, marks[name], place)
            for run in by_method[name].runs:
                ring(right, run.kept, 100 * run.kept_metric, marks[name].colour, 8)
        if _spans_much(by_method.values()):
            log_scale(left)
        for axes in (left, right):
            axes.autoscale_view()
    return figure


def _spans_much(curves: Iterable[LearningCurve]) -> bool:
    losses = np.concatenate([run.points("train_loss")[1] for c in curves for run in c.runs])
    return bool(losses.min() > 0 and losses.max() > LOG_FROM * losses.min())


def _draw(
    axes: Axes, curve: LearningCurve, what: Quantity, scale: float, mark: Mark, place: int
) -> None:
    series = curve.series(what)
    low, high = scale * series.low, scale * series.high
    axes.fill_between(series.epochs, low, high, color=mark.colour, alpha=0.14, linewidth=0)
    for epochs, values in curve.tails(what):
        axes.plot(epochs, scale * values, color=mark.colour, linewidth=0.8, alpha=0.7)
    add_line(axes, mark, series.epochs, scale * series.mean, place)
