"""Learning curves: the dev metric of the chosen candidate, epoch by epoch, over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int64

from stages.report.cells import Cell, CellResult
from storage.errors import CorruptDataError, NotFoundError

Run = tuple[Int64[np.ndarray, " n_epochs"], Float64[np.ndarray, " n_epochs"]]
"""Epochs and dev metric of one fit."""

_COLUMNS = ("candidate", "epoch", "dev_metric")


@dataclass(frozen=True)
class LearningCurve:
    """Dev metric after every epoch, over the seeds of one method on one task."""

    method: str
    task: str
    metric: str
    epochs: Int64[np.ndarray, " n_epochs"]
    """As the fit counted them."""
    mean: Float64[np.ndarray, " n_epochs"]
    low: Float64[np.ndarray, " n_epochs"]
    """The worst seed."""
    high: Float64[np.ndarray, " n_epochs"]
    """The best seed."""
    n_seeds: int


def learning_curves(results: Sequence[CellResult]) -> tuple[LearningCurve, ...]:
    """One curve per (method, task) that was trained in epochs.

    Seeds whose chosen candidates ran for different numbers of epochs are cut to the shortest.

    Raises:
        NotFoundError: a history file is not there.
        CorruptDataError: it lacks a column, or has no rows.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for r in results:
        if r.cell.history is not None:
            group = groups.setdefault((r.cell.method, r.cell.task, r.metrics.metric), [])
            group.append(_chosen(r.cell, r.cell.history))
    curves: list[LearningCurve] = []
    for (method, task, metric), runs in groups.items():
        shortest = min(len(epochs) for epochs, _ in runs)
        values = np.stack([metric_e[:shortest] for _, metric_e in runs])
        curves.append(
            LearningCurve(
                method=method,
                task=task,
                metric=metric,
                epochs=runs[0][0][:shortest],
                mean=values.mean(0),
                low=values.min(0),
                high=values.max(0),
                n_seeds=len(runs),
            )
        )
    return tuple(curves)


def _chosen(cell: Cell, path: Path) -> Run:
    """The candidate that the fit kept (ties: first candidate, earliest epoch)."""
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
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing or table.num_rows == 0:
        raise CorruptDataError(
            f"{path} ({cell.label}) has {table.num_rows} rows and the columns {table.column_names}, "
            f"expected rows with {list(_COLUMNS)}; fit it again"
        )
    table = table.sort_by([("candidate", "ascending"), ("epoch", "ascending")])
    candidate, epoch, dev = (table[name].to_numpy() for name in _COLUMNS)
    mine = candidate == candidate[np.argmax(dev)]
    return epoch[mine].astype(np.int64), dev[mine].astype(np.float64)
