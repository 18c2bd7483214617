"""Results as a table: methods and controls down, tasks across, mean and spread over seeds inside.

Numbers are kept as fractions; renderers show them times 100 with one decimal.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stages.report.cells import Cell, CellResult, Role, read_results

DASH = "–"
"""Stands where there is no number."""


def hundredths(value: float) -> str:
    """A fraction times 100, one decimal, with a typographic minus."""
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


@dataclass(frozen=True)
class Entry:
    """Test metric of one method on one task, over seeds."""

    mean: float
    sd: float | None
    """Sample standard deviation (ddof 1); None for one seed."""
    n: int
    """Seeds."""

    @property
    def text(self) -> str:
        """`87.3 ± 1.2`."""
        return f"{hundredths(self.mean)} ± {DASH if self.sd is None else hundredths(self.sd)}"


def entry(values: Sequence[float]) -> Entry:
    """Mean and sample standard deviation of at least one value."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Entry(mean=float(np.mean(values)), sd=sd, n=len(values))


@dataclass(frozen=True)
class Column:
    """One task under one metric."""

    task: str
    metric: str
    heading: str
    """The task; with its metric when the task has several."""
    majority: float | None
    n_test: int


@dataclass(frozen=True)
class Row:
    """One method or control."""

    method: str
    role: Role
    entries: tuple[Entry | None, ...]
    """One per column; None where the method was not run."""
    seeds: tuple[int, ...]
    n_parameters: tuple[int, int]
    """Smallest and largest over the tasks."""

    @property
    def n_seeds(self) -> int:
        """Seeds of the best-covered task."""
        return max(e.n for e in self.entries if e is not None)


@dataclass(frozen=True)
class ResultsTable:
    """Methods first, then controls, each in order of first appearance."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def of_role(self, role: Role) -> tuple[Row, ...]:
        """The rows that are methods, or controls."""
        return tuple(row for row in self.rows if row.role == role)

    def is_best(self, row: Row, column: int) -> bool:
        """No method shows a higher mean in this column, at the printed precision."""
        entry = row.entries[column]
        if entry is None or row.role == "control":
            return False
        others = [e.mean for r in self.of_role("method") if (e := r.entries[column]) is not None]
        return hundredths(entry.mean) == hundredths(max(others))

    @property
    def has_majority(self) -> bool:
        """Some column has a majority rate to compare with."""
        return any(c.majority is not None for c in self.columns)

    @property
    def has_spread(self) -> bool:
        """Some method was run with several seeds; otherwise there is no spread to speak of."""
        return any(e is not None and e.sd is not None for row in self.rows for e in row.entries)

    def text(self, entry: Entry) -> str:
        """The entry as it is printed: with its spread, unless no entry has one."""
        return entry.text if self.has_spread else hundredths(entry.mean)

    def to_markdown(self) -> str:
        """A pipe table; best in bold, controls named so, majority rate (if there is one) last."""
        body = [
            [
                _cell(f"{row.method} (control)" if row.role == "control" else row.method),
                *(
                    DASH
                    if e is None
                    else f"**{self.text(e)}**"
                    if self.is_best(row, i)
                    else self.text(e)
                    for i, e in enumerate(row.entries)
                ),
                str(row.n_seeds),
            ]
            for row in self.rows
        ]
        majority = [DASH if c.majority is None else hundredths(c.majority) for c in self.columns]
        header = [
            "method",
            *(f"{_cell(c.heading)} ({_cell(c.metric)})" for c in self.columns),
            "seeds",
        ]
        rule = [":---", *("---:" for _ in self.columns), "---:"]
        last = [["majority class", *majority, DASH]] if self.has_majority else []
        lines = [header, rule, *body, *last]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def summary(self) -> dict[str, Any]:
        """Plain data for listings: `tasks` are the headings of every row's `cells`."""
        return {
            "tasks": [c.heading for c in self.columns],
            "metrics": [c.metric for c in self.columns],
            "n_test": [c.n_test for c in self.columns],
            "majority": [
                {
                    "value": c.majority,
                    "text": DASH if c.majority is None else hundredths(c.majority),
                }
                for c in self.columns
            ],
            "rows": [
                {
                    "method": row.method,
                    "role": row.role,
                    "n_parameters": list(row.n_parameters),
                    "cells": [
                        None
                        if e is None
                        else {
                            "mean": e.mean,
                            "sd": e.sd,
                            "n": e.n,
                            "text": self.text(e),
                            "best": self.is_best(row, i),
                        }
                        for i, e in enumerate(row.entries)
                    ],
                }
                for row in self.rows
            ],
        }


def results_table(cells: Sequence[Cell]) -> ResultsTable:
    """Read the cells' metrics and tabulate them; raises as `read_results` does."""
    return tabulate(read_results(cells))


def tabulate(results: Sequence[CellResult]) -> ResultsTable:
    """Mean and spread over seeds of every (method, task) that occurs."""
    metrics_of: dict[str, list[str]] = {}
    for r in results:
        metrics = metrics_of.setdefault(r.cell.task, [])
        if r.metrics.metric not in metrics:
            metrics.append(r.metrics.metric)
    columns = tuple(
        _column(task, metric, len(metrics) > 1, results)
        for task, metrics in metrics_of.items()
        for metric in metrics
    )
    roles: tuple[Role, ...] = ("method", "control")
    rows: list[Row] = []
    for role in roles:
        by_method: dict[str, list[CellResult]] = {}
        for r in results:
            if r.cell.role == role:
                by_method.setdefault(r.cell.method, []).append(r)
        rows.extend(_row(name, role, columns, mine) for name, mine in by_method.items())
    return ResultsTable(columns, tuple(rows))


def _column(task: str, metric: str, ambiguous: bool, results: Sequence[CellResult]) -> Column:
    mine = [r.metrics for r in results if (r.cell.task, r.metrics.metric) == (task, metric)]
    return Column(
        task=task,
        metric=metric,
        heading=f"{task} · {metric}" if ambiguous else task,
        majority=next((m.majority for m in mine if m.majority is not None), None)
        if metric == "accuracy"  # the rate of one class says nothing about any other metric
        else None,
        n_test=mine[0].n_test,
    )


def _row(name: str, role: Role, columns: Sequence[Column], results: Sequence[CellResult]) -> Row:
    def tests(column: Column) -> list[float]:
        wanted = (column.task, column.metric)
        return [r.metrics.test for r in results if (r.cell.task, r.metrics.metric) == wanted]

    sizes = [r.metrics.n_parameters for r in results]
    return Row(
        method=name,
        role=role,
        entries=tuple(entry(values) if (values := tests(c)) else None for c in columns),
        seeds=tuple(sorted({r.cell.seed for r in results})),
        n_parameters=(min(sizes), max(sizes)),
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


SCHEMA = pa.schema(
    [
        pa.field("method", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("dev", pa.float64()),
        pa.field("test", pa.float64(), nullable=False),
        pa.field("majority", pa.float64()),
        pa.field("n_dev", pa.int64(), nullable=False),
        pa.field("n_test", pa.int64(), nullable=False),
        pa.field("n_parameters", pa.int64(), nullable=False),
        pa.field("choice", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
    ]
)
"""Columns of `results.parquet`, one row per cell; `choice` is JSON."""


def results_arrow(results: Sequence[CellResult]) -> pa.Table:
    """Every cell as a row, in the order given."""
    rows = [
        {
            **{name: getattr(r.cell, name) for name in ("method", "task", "seed", "role", "key")},
            **r.metrics.model_dump(exclude={"choice"}),
            "choice": json.dumps(r.metrics.choice, sort_keys=True, ensure_ascii=False),
        }
        for r in results
    ]
    return pa.table({name: [row[name] for row in rows] for name in SCHEMA.names}, schema=SCHEMA)
