"""Columns of local evaluation data, checked. Rows are numbered from 1 in messages."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stages.corpus.files import read_columns
from stages.mteb_evaluation.tasks import LocalTask
from storage.errors import InputError


def existing_file(config: LocalTask, holds: str) -> Path:
    """The file of a task that holds this.

    Raises:
        InputError: it is not there.
    """
    path = config.file(holds)
    if not path.exists():
        raise InputError(
            f"there is no file {path}, where the {holds} of a {config.type} task are expected; relative "
            f"paths count from the working folder {Path.cwd()}"
        )
    return path


def read_table(config: LocalTask, holds: str, columns: Sequence[str]) -> tuple[pa.Table, str]:
    """Some columns of a file, and its name for messages.

    Raises:
        InputError: the file is not there or cannot be read, has no such column, or has no rows.
    """
    path = existing_file(config, holds)
    table = read_columns(path, list(dict.fromkeys(columns)), [])
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows, so the task is empty; give it data or leave it out")
    return table, str(path)


def values_of(table: pa.Table, name: str, where: str) -> list[Any]:
    """The column; none is missing."""
    values = table.column(name).to_pylist()
    if None in values:
        raise InputError(
            f"row {values.index(None) + 1} of {where} has nothing in column {name!r} "
            f"({values.count(None)} such of {len(values)} rows); remove these rows or fill them"
        )
    return values


def texts_of(table: pa.Table, name: str, where: str) -> list[str]:
    """The column as text; blank ones are allowed."""
    values = values_of(table, name, where)
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            f"column {name!r} of {where} holds {table.column(name).type}, expected text; name the column "
            f"that has the texts"
        )
    return values


def text_lists_of(table: pa.Table, name: str, where: str) -> list[list[str]]:
    """The column as lists of at least one text."""
    values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        is_right = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
        if not is_right:
            raise InputError(
                f"row {row} of {where} has {value!r:.60} in column {name!r}, expected a list of at least one "
                f"text"
            )
    return values


def numbers_of(table: pa.Table, name: str, where: str) -> list[float]:
    """The column as finite numbers."""
    values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        is_number = isinstance(value, int | float) and abs(value) < float("inf")
        if not is_number:
            raise InputError(
                f"row {row} of {where} has {value!r:.60} in column {name!r}, expected a finite number"
            )
    return [float(v) for v in values]


def zeros_and_ones(table: pa.Table, name: str, where: str) -> list[int]:
    """The column as labels 0 and 1."""
    values = numbers_of(table, name, where)
    if other := [v for v in values if v not in (0, 1)]:
        raise InputError(
            f"column {name!r} of {where} holds {other[0]:g} in row {values.index(other[0]) + 1}; labels of "
            f"this kind of task are 0 and 1"
        )
    return [int(v) for v in values]


def classes_of(table: pa.Table, name: str, where: str) -> list[int | str]:
    """The column as classes, whole numbers or names."""
    values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        if not isinstance(value, int | str):
            raise InputError(
                f"row {row} of {where} has {value!r:.60} in column {name!r}; classes are whole numbers or "
                f"names"
            )
    return values


def ids_of(table: pa.Table, name: str, where: str) -> list[str]:
    """Ids, also those written as numbers."""
    return [str(value) for value in values_of(table, name, where)]


def unique_ids_of(table: pa.Table, name: str, where: str) -> list[str]:
    """Ids of which none occurs twice."""
    ids = ids_of(table, name, where)
    (first, n), *_ = Counter(ids).most_common(1)
    if n > 1:
        at = ids.index(first)
        again = ids.index(first, at + 1)
        raise InputError(
            f"the id {first!r} stands in rows {at + 1} and {again + 1} of {where} (column {name!r}); give "
            f"every row an id of its own"
        )
    return ids
