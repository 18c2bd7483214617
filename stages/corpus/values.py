"""Checked values of the columns of a table: texts, numbers, ids, and lists of them.

Lists, as in mteb's older datasets, are native in parquet, jsonl and json, and JSON in the cells of csv and
tsv. Messages number rows from 1.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.stages.corpus.table_files import first_values, read_columns
from permafrost.stages.corpus.text_format import name_the_encoding
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_EXACT_BELOW = {"halffloat": 2**11, "float": 2**24, "double": 2**53}
"""Floats of these types hold every whole number below."""


def checked_texts(
    column: pa.ChunkedArray, name: str, where: str, rows: NDArray[np.int64] | None = None
) -> pa.ChunkedArray:
    """The column as valid, non-blank `large_string`.

    Args:
        column: one value per row of the source, or as `rows` says.
        name: of the column, for messages.
        where: names the source, for messages.
        rows: row of each value, from 0, if a row may hold several.

    Raises:
        InputError: there are no rows, the column is not text, or a text is invalid UTF-8, missing or blank;
            the message has its row number.
    """
    if column.length() == 0:
        raise InputError(f"{where} has no rows; give at least one text")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not holds_text(kind):
        raise _no_text(column, name, where)
    texts = decoded(column, name, where, rows)
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True)
    at = pc.index(blank, True).as_py()
    if at >= 0:
        value = texts.slice(at, 1).to_pylist()[0]
        n_blank = pc.sum(blank).as_py()
        raise InputError(
            f"row {_row(at, rows)} of {where} has "
            f"{'no text' if value is None else f'the blank text {quoted(value[:40])}'} in column "
            f"{quoted(name)} ({n_blank} such of {texts.length()} {'rows' if rows is None else 'texts'}); "
            "remove the row or fill it"
        )
    return texts


def decoded(
    column: pa.ChunkedArray, name: str, where: str, rows: NDArray[np.int64] | None = None
) -> pa.ChunkedArray:
    """Text or bytes as `large_string`, keeping nulls; for the arguments see `checked_texts`.

    Raises:
        InputError: the column is not text, or a text is invalid UTF-8; the message has its row number.
    """
    try:
        texts = column.cast(pa.large_string())
        texts.validate(full=True)
    except pa.ArrowNotImplementedError as error:
        raise _no_text(column, name, where) from error
    except pa.ArrowInvalid as error:
        at, raw = _first_undecodable(column)
        raise InputError(
            f"row {_row(at, rows)} of {where}, column {quoted(name)}, is not valid UTF-8: "
            f"{quoted(raw[:60])}; {name_the_encoding('cp1252')}"
        ) from error
    return texts


def _no_text(column: pa.ChunkedArray, name: str, where: str) -> InputError:
    kind, advice = column.type, "name the column that has the texts"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        advice += ", or if it is this one, store it as text (of csv, kind 'files' reads it as it is written)"
    return InputError(f"column {quoted(name)} of {where} holds {kind}, expected text; {advice}")


def plain(table: pa.Table, name: str, where: str) -> list[Any]:
    """The values of a column, those that are missing as None; raises InputError for invalid UTF-8."""
    column = table.column(name)
    try:
        return column.to_pylist()
    except UnicodeDecodeError as error:
        if holds_text(column.type):
            decoded(column, name, where)
        raise InputError(
            f"column {quoted(name)} of {where} has text that is not valid UTF-8: {error}; "
            f"{name_the_encoding('cp1252')}"
        ) from error


def _first_undecodable(column: pa.ChunkedArray) -> tuple[int, bytes]:
    raw = column.cast(pa.large_binary())
    for at, value in enumerate(raw):
        data: bytes = value.as_py() or b""
        try:
            data.decode()
        except UnicodeDecodeError:
            return at, data
    raise AssertionError("Arrow found invalid UTF-8 that Python does not")


def _row(at: int, rows: NDArray[np.int64] | None) -> int:
    """The row number of a value, from 1."""
    return 1 + (at if rows is None else int(rows[at]))


def holds_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text, or bytes that may be text."""
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def values_of(table: pa.Table, name: str, where: str, note: str = "") -> list[Any]:
    """The values of a column; raises InputError if one is missing, with a note at its end."""
    values = plain(table, name, where)
    if None in values:
        raise InputError(
            f"row {values.index(None) + 1} of {where} has nothing in column {quoted(name)} "
            f"({values.count(None)} such of {len(values)} rows); remove these rows or fill them{note}"
        )
    return values


def texts_of(table: pa.Table, name: str, where: str) -> list[str]:
    """The column as text; blank ones are allowed."""
    if _is_bytes(table.column(name)):  # of a csv file
        at = table.column_names.index(name)
        table = table.set_column(at, name, decoded(table.column(name), name, where))
    values = values_of(table, name, where)
    if not all(isinstance(value, str) for value in values):
        raise _no_text(table.column(name), name, where)
    return values


def numbers_of(table: pa.Table, name: str, where: str) -> list[float]:
    """The column as finite numbers."""
    values = values_of(table, name, where)
    wrong = [row for row, value in enumerate(values) if not _is_finite(value)]
    if not wrong:
        return [float(v) for v in values]
    # One word makes a whole column of csv text, its numbers too: the word is what is wrong.
    row = next((row for row in wrong if not _reads_as_finite(values[row])), wrong[0])
    raise InputError(
        f"row {row + 1} of {where} has {quoted(values[row])} in column {quoted(name)}, expected a finite "
        "number" + (", and no text" if _reads_as_finite(values[row]) else "")
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def _reads_as_finite(text: object) -> bool:
    try:
        return isinstance(text, str) and _is_finite(float(text))
    except ValueError:
        return False


def zeros_and_ones(table: pa.Table, name: str, where: str) -> list[int]:
    """The column as labels 0 and 1."""
    values = numbers_of(table, name, where)
    if other := [v for v in values if v not in (0, 1)]:
        raise InputError(
            f"column {quoted(name)} of {where} holds {other[0]:g} in row {values.index(other[0]) + 1}; "
            f"labels of this kind of task are 0 and 1"
        )
    return [int(v) for v in values]


def ids_of(table: pa.Table, name: str, where: str, rows: Sequence[int] | None = None) -> list[str]:
    """The column as ids; numbers are allowed.

    Args:
        table: with a value in every row.
        name: of the column.
        where: names the source, for messages.
        rows: row of each value, from 0, if the table is a part.

    Raises:
        InputError: a value is missing, or is no id; see `id_of`.
    """
    if pa.types.is_large_binary(table.column(name).type):
        return texts_of(table, name, where)
    kind, ids = str(table.column(name).type), list[str]()
    for at, value in enumerate(values_of(table, name, where)):
        try:
            ids.append(id_of(value, name, kind))
        except ValueError as error:
            row = 1 + (at if rows is None else rows[at])
            raise InputError(f"row {row} of {where} {error}") from error
    return ids


def id_of(value: object, name: str, kind: str = "double") -> str:
    """A value as an id: whole numbers in a column with gaps are often stored as float.

    Args:
        value: that is there.
        name: of the column, for messages.
        kind: the type of the column, as Arrow calls it.

    Raises:
        ValueError: a float so large that it may stand for several whole numbers; the message goes on after
            the row.
    """
    if not isinstance(value, float):
        return str(value)
    exact = _EXACT_BELOW[kind]
    if exact <= abs(value) < float("inf"):
        raise ValueError(
            f"has the id {value:.0f} in column {quoted(name)}, which is stored as {kind} and may have been "
            f"another: whole numbers from {exact} on are rounded there; store the column as Int64 or text"
        )
    return str(int(value) if value.is_integer() else value)


def unique_ids_of(table: pa.Table, name: str, where: str) -> list[str]:
    """The column as ids; raises InputError if one occurs twice."""
    ids = ids_of(table, name, where)
    (first, n), *_ = Counter(ids).most_common(1)
    if n > 1:
        at = ids.index(first)
        again = ids.index(first, at + 1)
        raise InputError(
            f"the id {quoted(first)} is in rows {at + 1} and {again + 1} of {where} (column "
            f"{quoted(name)}); give every row an id of its own"
        )
    return ids


def holds_lists(path: Path, names: Sequence[str]) -> bool:
    """Whether each of these columns begins with a list.

    Raises:
        InputError: the file is missing, empty, unreadable or broken.
    """
    first = first_values(path, names)
    return all(isinstance(_listed(first.get(name)), list) for name in names)


def list_rows(
    path: Path,
    texts: Sequence[str],
    others: Sequence[str] = (),
    *,
    single: Sequence[str] = (),
    ids: Sequence[str] = (),
) -> tuple[pa.Table, dict[str, list[list[Any]]]]:
    """The rows of a file as a table, and its columns that hold lists; a missing list counts as empty.

    Args:
        path: of the file.
        texts: columns with lists of texts; a single text counts as a list of one.
        others: columns with lists of numbers or texts.
        single: columns with one text per row.
        ids: columns with one id per row.

    Raises:
        InputError: a value is not a list; see also `read_columns`.
    """
    table = read_columns(path, single, [], texts, ids=ids, lists=others)
    return table, {name: _lists(table, name, str(path)) for name in (*texts, *others)}


def unnested(path: Path, texts: Sequence[str], others: Sequence[str]) -> pa.Table:
    """The columns with one row per element of their lists, which have equal lengths in every row.

    Raises:
        InputError: see `list_rows`; or lists have different lengths, or elements different types.
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
    """Check that the lists of each row have equal lengths.

    Raises:
        InputError: they do not; the message names the row.
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
        # An empty cell in csv is an empty list.
        filled = table.set_column(
            table.column_names.index(name), name, column.fill_null(b"" if _is_bytes(column) else "")
        )
        values = [_listed(text) if text else [] for text in texts_of(filled, name, where)]
        return [value if isinstance(value, list) else [value] for value in values]
    values = [[] if value is None else value for value in plain(table, name, where)]
    for row, value in enumerate(values, start=1):
        if not isinstance(value, list):
            raise InputError(
                f"row {row} of {where} has {quoted(value)} in column {quoted(name)}, expected a list"
            )
    return values


def _is_bytes(column: pa.ChunkedArray) -> bool:
    return pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)


def _listed(value: Any) -> Any:
    """The list that a JSON text holds; any other value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
