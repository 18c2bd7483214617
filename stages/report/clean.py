"""Scores without the test examples that share a text with train."""

from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.entries import Entry, entry
from permafrost.stages.report.tables import Column, ResultsTable, Row


@dataclass(frozen=True)
class CleanRow:
    """Scores of one method on the test examples that share no text with train."""

    method: str
    role: Role
    entries: tuple[tuple[Entry | None, Entry | None], ...]
    """Per column: on all of test, and on the clean part; None if that was not run or has no score."""


@dataclass(frozen=True)
class CleanTable:
    """Scores on all of test and on its clean part, for the tasks whose test split shares texts with train."""

    columns: tuple[Column, ...]
    n_clean: tuple[int, ...]
    """Test examples in the clean part of each column."""
    rows: tuple[CleanRow, ...]


def clean_table(results: Sequence[CellResult], table: ResultsTable) -> CleanTable | None:
    """Means over seeds on the clean parts of test; None if train shares no text with any test set, or if no
    clean part has a score."""
    indices = [
        i
        for i, column in enumerate(table.columns)
        if column.overlap and any(_clean(row, column, results) is not None for row in table.rows)
    ]
    if not indices:
        return None
    rows: list[CleanRow] = []
    for row in table.rows:
        entries = tuple((row.entries[i], _clean(row, table.columns[i], results)) for i in indices)
        if any(on_clean is not None for _, on_clean in entries):
            rows.append(CleanRow(row.method, row.role, entries))
    columns = tuple(table.columns[i] for i in indices)
    return CleanTable(columns, tuple(_n_clean(c, results) for c in columns), tuple(rows))


def _clean(row: Row, column: Column, results: Sequence[CellResult]) -> Entry | None:
    # With the role, as a baseline that is a control on some tasks has two rows.
    cell = (row.method, row.role, column.task, column.metric)
    values = [
        r.metrics.clean_test
        for r in results
        if (r.cell.method, r.cell.role, r.cell.task, r.metrics.metric) == cell
    ]
    scores = [value for value in values if value is not None]
    return entry(scores) if scores and len(scores) == len(values) else None


def _n_clean(column: Column, results: Sequence[CellResult]) -> int:
    return next(
        r.metrics.n_clean_test
        for r in results
        if r.cell.task == column.task and r.metrics.n_clean_test is not None
    )
