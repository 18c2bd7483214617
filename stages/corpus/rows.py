"""The checked rows of one split, from which a corpus is built whatever its source.

Messages number rows from 1, without headers and blank lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.stages.corpus.names import require_columns
from permafrost.stages.corpus.values import checked_texts, decoded, holds_text
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import offsets_of


@dataclass(frozen=True)
class Negatives:
    """The hard negatives of one split, row after row."""

    column: str
    texts: pa.ChunkedArray
    """`large_string`, without nulls and blank texts."""
    rows: NDArray[np.int64]
    """The row of each text, from 0, ascending."""

    def numbered(
        self, numbers: pa.Array, sides: tuple[pa.Array, pa.Array], split: "SplitRows"
    ) -> pa.ListArray:
        """The texts' numbers as one list per row.

        Args:
            numbers: of the texts, int64.
            sides: numbers of the first and the second text of each row.
            split: that they are of, for messages.

        Raises:
            InputError: a negative is a text of its own row.
        """
        texts = np.stack([side.to_numpy() for side in sides])
        wrong = (texts[:, self.rows] == numbers.to_numpy()).any(axis=0)
        if wrong.any():
            row = int(self.rows[wrong.argmax()])
            raise InputError(
                f"row {split.number(row)} of {split.where} has a negative in column "
                f"{quoted(self.column)} that is the row's own text or text_pair ({int(wrong.sum())} such of "
                f"{len(wrong)} negatives); remove it"
            )
        counts = np.bincount(self.rows, minlength=texts.shape[1])
        return pa.ListArray.from_arrays(pa.array(offsets_of(counts), pa.int32()), numbers)


def checked_negatives(column: pa.ChunkedArray, name: str, where: str) -> Negatives:
    """Read a column with one text or a list of texts per row.

    A row has no negatives if its value is missing, an empty list or, in a column of single texts, an empty
    text (all that a csv file can hold).

    Raises:
        InputError: the column holds something else, or a text is missing in a list, blank or not UTF-8.
    """
    texts, rows = _flat(column, name, where)
    if not len(rows):
        return Negatives(name, _chunked(pa.array([], pa.large_string())), rows)
    return Negatives(name, checked_texts(texts, name, where, rows), rows)


def _flat(
    column: pa.ChunkedArray, name: str, where: str
) -> tuple[pa.ChunkedArray, NDArray[np.int64]]:
    """The texts as bytes, and the row of each."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_null(kind):
        return _chunked(pa.array([], pa.large_binary())), np.empty(0, np.int64)
    if holds_text(kind):
        raw = column.cast(pa.large_binary())
        is_filled = pc.fill_null(pc.greater(pc.binary_length(raw), 0), False)
        return raw.filter(is_filled), np.flatnonzero(is_filled.to_numpy())
    if not _is_list(kind) or not (holds_text(kind.value_type) or pa.types.is_null(kind.value_type)):
        raise InputError(
            f"column {quoted(name)} of {where} holds {kind}, expected a text or a list of texts in each "
            "row; name the column with the negatives"
        )
    lists = column.cast(pa.large_list(kind.value_type)).combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    texts = lists.flatten().cast(pa.large_binary())
    return _chunked(texts), np.repeat(np.arange(len(counts)), counts)


def require_some_negatives(splits: Sequence[Negatives]) -> None:
    """Check that a column of negatives, if there is one, is not empty in every split.

    Raises:
        InputError: it is.
    """
    if splits and not any(len(s.rows) for s in splits):
        raise InputError(
            f"column {quoted(splits[0].column)} holds no text in any row of any split; name the column "
            "with the negatives, or leave 'negative' out of the task"
        )


def _chunked(array: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([array], array.type)


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


@dataclass(frozen=True)
class SplitRows:
    """One split. Columns have equal lengths and no nulls, texts are not blank; labels are as read."""

    split: str
    where: str
    """Names the source in messages."""
    text: pa.ChunkedArray
    text_pair: pa.ChunkedArray | None
    label: pa.ChunkedArray | None
    class_names: tuple[str, ...] | None
    """Names of classes 0, 1, ... if the source declares them."""
    negatives: Negatives | None = None
    """Hard negatives; None if the task names no column of them."""
    label_name: str = "label"
    """The column of labels in the source, for messages."""
    numbers: NDArray[np.int64] | None = None
    """The row of the source that each one was, from 0, if they are not all of its rows."""

    def number(self, row: int) -> int:
        """The number of a row in the source, from 1."""
        return 1 + (row if self.numbers is None else int(self.numbers[row]))


def checked_rows(
    table: pa.Table,
    columns: tuple[Sequence[str], Sequence[str], Sequence[str]],
    split: str,
    where: str,
    class_names: tuple[str, ...] | None = None,
) -> SplitRows:
    """Take the columns of a task from a table.

    Args:
        table: of one split.
        columns: with texts (one or two), with labels and with hard negatives (one or none).
        split: its name.
        where: names the source, for messages.
        class_names: of classes 0, 1, ... if the source declares them.

    Raises:
        InputError: there are no rows, a column or label is missing, a text is missing, blank or not text, or
            a label is not UTF-8.
    """
    require_columns(table.column_names, [name for names in columns for name in names], where)
    texts = [checked_texts(table.column(name), name, where) for name in columns[0]]
    labels = [_checked_label(table.column(name), name, where) for name in columns[1]]
    negatives = [checked_negatives(table.column(name), name, where) for name in columns[2]]
    return SplitRows(
        split=split,
        where=where,
        text=texts[0],
        text_pair=texts[1] if len(texts) > 1 else None,
        label=labels[0] if labels else None,
        class_names=class_names,
        negatives=negatives[0] if negatives else None,
        label_name=columns[1][0] if columns[1] else "label",
    )


def _checked_label(column: pa.ChunkedArray, name: str, where: str) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    row = pc.index(column.is_null(), True).as_py()
    if row >= 0:
        raise InputError(
            f"row {row + 1} of {where} has no label in column {quoted(name)} ({column.null_count} such "
            f"of {column.length()} rows); remove these rows, or use a task of kind 'unlabelled'"
        )
    return decoded(column, name, where) if holds_text(column.type) else column
