"""A column of texts, checked. Rows are numbered from 1 in messages."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def checked_texts(
    column: pa.ChunkedArray, name: str, where: str, rows: NDArray[np.int64] | None = None
) -> pa.ChunkedArray:
    """The column as valid, non-blank `large_string`.

    Args:
        column: one value per row of the source, or as `rows` says.
        name: of the column, for messages.
        where: names the source, for messages.
        rows: row of each value, from 0, where rows hold any number of them.

    Raises:
        InputError: no rows, not text, invalid UTF-8, or a missing or blank text; with its row number.
    """
    if column.length() == 0:
        raise InputError(f"{where} has no rows; give at least one text")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not holds_text(kind):
        raise InputError(
            f"column {quoted(name)} of {where} holds {column.type}, expected text; name the column that "
            "has the texts"
        )
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
    """Text or bytes as `large_string`, missing ones kept; for the arguments see `checked_texts`.

    Raises:
        InputError: invalid UTF-8; with its row number.
    """
    try:
        texts = column.cast(pa.large_string())
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        at, raw = _first_undecodable(column)
        raise InputError(
            f"row {_row(at, rows)} of {where}, column {quoted(name)}, is not valid UTF-8: "
            f"{quoted(raw[:60])}; save the data as UTF-8"
        ) from error
    return texts


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
    """Number of the row of a value, from 1."""
    return 1 + (at if rows is None else int(rows[at]))


def holds_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text, or bytes that may be."""
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
