"""The rows of one split, checked: whatever the source, this is what a corpus is made from.

Rows are numbered from 1 in messages, headers and blank lines not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stages.corpus.columns import PairClassification, Similarity, Task, Unlabelled
from storage.errors import InputError


@dataclass(frozen=True)
class SplitRows:
    """One split. Columns are equally long, without nulls, texts not blank; labels are as read."""

    split: str
    where: str
    """Names the source in messages."""
    text: pa.ChunkedArray
    text_pair: pa.ChunkedArray | None
    label: pa.ChunkedArray | None
    class_names: tuple[str, ...] | None
    """Names of classes 0, 1, ... where the source declares them."""


def text_columns(task: Task) -> tuple[str, ...]:
    """Columns that must hold text."""
    if isinstance(task, PairClassification | Similarity):
        return (task.text, task.text_pair)
    return (task.text,)


def label_columns(task: Task) -> tuple[str, ...]:
    """Columns that hold labels: one or none."""
    return () if isinstance(task, Unlabelled) else (task.label,)


def require_columns(available: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Check that each wanted column is there exactly once.

    Raises:
        InputError: a column is missing or ambiguous.
    """
    for name in wanted:
        if available.count(name) != 1:
            problem = "no column" if name not in available else "more than one column"
            raise InputError(
                f"{where} has {problem} {name!r}; its columns are "
                f"{', '.join(map(repr, available))}. Name one of these in the task's text, "
                "text_pair or label (on the command line: FILE::COLUMN)"
            )


def checked_rows(
    table: pa.Table,
    task: Task,
    split: str,
    where: str,
    class_names: tuple[str, ...] | None = None,
) -> SplitRows:
    """Take the columns of a task from a table.

    Raises:
        InputError: no rows, a missing column, a text that is missing, blank or not text, a missing label.
    """
    require_columns(table.column_names, (*text_columns(task), *label_columns(task)), where)
    texts = [checked_texts(table.column(name), name, where) for name in text_columns(task)]
    labels = [_checked_label(table.column(name), name, where) for name in label_columns(task)]
    return SplitRows(
        split=split,
        where=where,
        text=texts[0],
        text_pair=texts[1] if len(texts) > 1 else None,
        label=labels[0] if labels else None,
        class_names=class_names,
    )


def checked_texts(column: pa.ChunkedArray, name: str, where: str) -> pa.ChunkedArray:
    """The column as valid, non-blank `large_string`.

    Raises:
        InputError: no rows, not text, invalid UTF-8, or a missing or blank text; with its row number.
    """
    if column.length() == 0:
        raise InputError(f"{where} has no rows; give at least one text")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_binary or is_text or pa.types.is_string_view(kind)):
        raise InputError(
            f"column {name!r} of {where} holds {column.type}, expected text; name the column that "
            "has the texts"
        )
    try:
        texts = column.cast(pa.large_string())
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        row, raw = _first_undecodable(column)
        raise InputError(
            f"row {row} of {where}, column {name!r}, is not valid UTF-8: {raw[:60]!r}; save the "
            "data as UTF-8"
        ) from error
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True)
    row = pc.index(blank, True).as_py()
    if row >= 0:
        value = texts.slice(row, 1).to_pylist()[0]
        n_blank = pc.sum(blank).as_py()
        raise InputError(
            f"row {row + 1} of {where} has "
            f"{'no text' if value is None else f'the blank text {value[:40]!r}'} in column "
            f"{name!r} ({n_blank} such of {texts.length()} rows); remove the row or fill it"
        )
    return texts


def _first_undecodable(column: pa.ChunkedArray) -> tuple[int, bytes]:
    raw = column.cast(pa.large_binary())
    for row, value in enumerate(raw, start=1):
        data: bytes = value.as_py() or b""
        try:
            data.decode()
        except UnicodeDecodeError:
            return row, data
    raise AssertionError("Arrow found invalid UTF-8 that Python does not")


def _checked_label(column: pa.ChunkedArray, name: str, where: str) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    row = pc.index(column.is_null(), True).as_py()
    if row >= 0:
        raise InputError(
            f"row {row + 1} of {where} has no label in column {name!r} ({column.null_count} such "
            f"of {column.length()} rows); remove these rows, or use a task of kind 'unlabelled'"
        )
    return column
