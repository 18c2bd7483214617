"""The rows of one split, checked: whatever the source, this is what a corpus is made from.

Rows are numbered from 1 in messages, headers and blank lines not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.corpus.negatives import Negatives, checked_negatives
from permafrost.stages.corpus.text_column import checked_texts
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


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
    negatives: Negatives | None = None
    """Hard negatives; None where the task names no column of them."""


def require_columns(available: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Check that each wanted column is there exactly once.

    Raises:
        InputError: a column is missing or ambiguous.
    """
    for name in wanted:
        if available.count(name) != 1:
            problem = "no column" if name not in available else "more than one column"
            raise InputError(
                f"{where} has {problem} {quoted(name)}; its columns are "
                f"{_listed(available)}. Name one of these in the task's text, "
                "text_pair, negative or label (on the command line: FILE::COLUMN)"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
    return ", ".join(map(quoted, names[:20])) + more


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
        class_names: of classes 0, 1, ... where the source declares them.

    Raises:
        InputError: no rows, a missing column, a text that is missing, blank or not text, a missing label.
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
    return column
