"""`results.parquet`: every cell as a row."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from permafrost.stages.metrics.bootstrap import Interval
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.standing import Standing
from permafrost.stages.report.tables import Column

CellName = tuple[str, str, int]
"""Method, task, seed."""

SCHEMA = pa.schema(
    [
        pa.field("method", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("category", pa.string()),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("dev", pa.float64()),
        pa.field("test", pa.float64(), nullable=False),
        pa.field("ci_low", pa.float64()),
        pa.field("ci_high", pa.float64()),
        pa.field("majority", pa.float64()),
        pa.field("class_balance", pa.string()),
        pa.field("overlap", pa.float64()),
        pa.field("n_clean_test", pa.int64()),
        pa.field("clean_test", pa.float64()),
        pa.field("n_dev", pa.int64(), nullable=False),
        pa.field("n_test", pa.int64(), nullable=False),
        pa.field("n_parameters", pa.int64(), nullable=False),
        pa.field("choice", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
    ]
)
"""Columns, one row per cell. `ci_low` and `ci_high` are the interval of `test` over resampled test examples,
null where the predictions were not kept. `overlap` is the share of test examples with a text that train has,
`clean_test` the metric on the `n_clean_test` others. `choice` and `class_balance`, the share of each class in
test, are JSON."""

_OF_CELL = ("method", "task", "category", "seed", "role", "key")


def cell_intervals(
    columns: Sequence[Column], standings: Sequence[Standing]
) -> dict[CellName, Interval]:
    """The interval of every cell that has one."""
    return {
        (method, column.task, seed): found
        for column, standing in zip(columns, standings, strict=True)
        for (method, seed), found in standing.cells.items()
    }


def results_arrow(
    results: Sequence[CellResult], intervals: Mapping[CellName, Interval]
) -> pa.Table:
    """Every cell as a row, in the order given."""
    rows = [
        {
            **{name: getattr(r.cell, name) for name in _OF_CELL},
            **r.metrics.model_dump(exclude={"choice", "class_balance"}),
            "ci_low": None if interval is None else interval.low,
            "ci_high": None if interval is None else interval.high,
            "choice": json.dumps(r.metrics.choice, sort_keys=True, ensure_ascii=False),
            "class_balance": None
            if (shares := r.metrics.class_balance) is None
            else json.dumps(shares, ensure_ascii=False),
        }
        for r in results
        for interval in [intervals.get((r.cell.method, r.cell.task, r.cell.seed))]
    ]
    return pa.table({name: [row[name] for row in rows] for name in SCHEMA.names}, schema=SCHEMA)
