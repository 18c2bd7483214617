"""Columns of a table as Python values, checked. Rows are numbered from 1 in messages.

Every function raises `InputError` where a value is missing or of another kind than it should be.
"""

from collections import Counter
from typing import Any

import pyarrow as pa

from permafrost.stages.corpus.text_column import decoded
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def values_of(table: pa.Table, name: str, where: str) -> list[Any]:
    """The column; none is missing."""
    values = table.column(name).to_pylist()
    if None in values:
        raise InputError(
            f"row {values.index(None) + 1} of {where} has nothing in column {quoted(name)} "
            f"({values.count(None)} such of {len(values)} rows); remove these rows or fill them"
        )
    return values


def texts_of(table: pa.Table, name: str, where: str) -> list[str]:
    """The column as text; blank ones are allowed."""
    if pa.types.is_large_binary(table.column(name).type):  # of a csv file
        at = table.column_names.index(name)
        table = table.set_column(at, name, decoded(table.column(name), name, where))
    values = values_of(table, name, where)
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            f"column {quoted(name)} of {where} holds {table.column(name).type}, expected text; name the "
            f"column that has the texts"
        )
    return values


def numbers_of(table: pa.Table, name: str, where: str) -> list[float]:
    """The column as finite numbers."""
    values = values_of(table, name, where)
    for row, value in enumerate(values, start=1):
        is_number = isinstance(value, int | float) and abs(value) < float("inf")
        if not is_number:
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}, expected a finite number"
            )
    return [float(v) for v in values]


def zeros_and_ones(table: pa.Table, name: str, where: str) -> list[int]:
    """The column as labels 0 and 1."""
    values = numbers_of(table, name, where)
    if other := [v for v in values if v not in (0, 1)]:
        raise InputError(
            f"column {quoted(name)} of {where} holds {other[0]:g} in row {values.index(other[0]) + 1}; "
            f"labels of this kind of task are 0 and 1"
        )
    return [int(v) for v in values]


def ids_of(table: pa.Table, name: str, where: str) -> list[str]:
    """Ids, also those written as numbers."""
    if pa.types.is_large_binary(table.column(name).type):
        return texts_of(table, name, where)
    values = values_of(table, name, where)
    # Whole numbers in a column with gaps are often stored as float.
    return [str(int(v) if isinstance(v, float) and v.is_integer() else v) for v in values]


def unique_ids_of(table: pa.Table, name: str, where: str) -> list[str]:
    """Ids of which none occurs twice."""
    ids = ids_of(table, name, where)
    (first, n), *_ = Counter(ids).most_common(1)
    if n > 1:
        at = ids.index(first)
        again = ids.index(first, at + 1)
        raise InputError(
            f"the id {quoted(first)} stands in rows {at + 1} and {again + 1} of {where} (column "
            f"{quoted(name)}); give every row an id of its own"
        )
    return ids
