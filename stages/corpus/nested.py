"""Rows that hold lists, as mteb's older datasets have them, made into one row per element.

Lists are those of parquet and jsonl, or JSON in the cells of csv and tsv.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from permafrost.stages.corpus.table_files import first_row, read_columns
from permafrost.stages.corpus.text_column import holds_text
from permafrost.stages.corpus.values import texts_of
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def holds_lists(path: Path, names: Sequence[str]) -> bool:
    """Whether each of these columns has a list in the first row.

    Raises:
        InputError: the file is missing, empty, unreadable or broken.
    """
    first = first_row(path)
    return all(isinstance(_listed(first.get(name)), list) for name in names)


def list_rows(
    path: Path,
    texts: Sequence[str],
    others: Sequence[str] = (),
    *,
    single: Sequence[str] = (),
    ids: Sequence[str] = (),
) -> tuple[pa.Table, dict[str, list[list[Any]]]]:
    """The rows of a file as a table, and the columns that hold lists; a missing list is an empty one.

    Args:
        path: of the file.
        texts: columns with lists of texts; a text alone is a list of one.
        others: columns with lists of numbers or texts.
        single: columns with one text in each row.
        ids: columns with one id in each row.

    Raises:
        InputError: a value that is no list; see also `read_columns`.
    """
    table = read_columns(path, single, [], texts, ids=ids, lists=others)
    return table, {name: _lists(table, name, str(path)) for name in (*texts, *others)}


def unnested(path: Path, texts: Sequence[str], others: Sequence[str]) -> pa.Table:
    """The columns with one row per element of their lists, which are equally long in every row.

    Raises:
        InputError: see `list_rows`, lists of different lengths, or elements of different types.
    """
    _, lists = list_rows(path, texts, others)
    require_equal_lengths(lists, str(path))
    try:
        return pa.table({name: pa.array(sum_of(rows)) for name, rows in lists.items()})
    except pa.ArrowException as error:
        raise InputError(
            f"the lists of {path} hold values of different types: {error}; give those of a column one type"
        ) from error


def require_equal_lengths(lists: Mapping[str, Sequence[Sequence[Any]]], where: str) -> None:
    """Check that the lists of a row are equally long.

    Raises:
        InputError: not so; with the row.
    """
    (first, rows), *others = lists.items()
    for name, other in others:
        for number, (one, two) in enumerate(zip(rows, other, strict=True), start=1):
            if len(one) != len(two):
                raise InputError(
                    f"row {number} of {where} has {len(one)} elements in column {quoted(first)} and "
                    f"{len(two)} in {quoted(name)}; repair the row, they belong together"
                )


def sum_of(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The elements of all rows."""
    return [value for row in rows for value in row]


def _lists(table: pa.Table, name: str, where: str) -> list[list[Any]]:
    column = table.column(name)
    if holds_text(column.type):
        # Nothing in a cell of csv is nothing at all.
        filled = table.set_column(
            table.column_names.index(name), name, column.fill_null(b"" if _is_bytes(column) else "")
        )
        values = [_listed(text) if text else [] for text in texts_of(filled, name, where)]
        return [value if isinstance(value, list) else [value] for value in values]
    values = [[] if value is None else value for value in column.to_pylist()]
    for row, value in enumerate(values, start=1):
        if not isinstance(value, list):
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}, expected a list"
            )
    return values


def _is_bytes(column: pa.ChunkedArray) -> bool:
    return pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)


def _listed(value: Any) -> Any:
    """A list that is written as JSON; else the value."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
