"""The rows of one split, checked: whatever the source, this is what a corpus is made from.

Rows are numbered from 1 in messages, headers and blank lines not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.corpus.columns import Classification, Similarity, Task, Unlabelled
from permafrost.stages.corpus.names import CLASS, GRADE, TEXT, find_column, find_pair
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


def text_columns(task: Task) -> tuple[str, ...]:
    """Columns that must hold text."""
    pair = None if isinstance(task, Classification) else task.text_pair
    return (task.text,) if pair is None else (task.text, pair)


def label_columns(task: Task) -> tuple[str, ...]:
    """Columns that hold labels: one or none."""
    return () if isinstance(task, Unlabelled) else (task.label,)


def negative_columns(task: Task) -> tuple[str, ...]:
    """Columns that hold hard negatives: one or none."""
    return (task.negative,) if isinstance(task, Unlabelled) and task.negative is not None else ()


def named_task(task: Task, available: Sequence[str], where: str) -> Task:
    """The task with the columns of a file: as given, or with other usual names where they are the defaults.

    Raises:
        InputError: a column is missing, or several could be meant.
    """
    found: dict[str, str]
    if isinstance(task, Classification) or task.text_pair is None:
        found = {"text": find_column("text", task.text, TEXT, available, where)}
    else:
        given = (task.text, task.text_pair)
        first, second = find_pair(given, ("text", "text_pair"), available, where)
        found = {"text": first, "text_pair": second}
    if not isinstance(task, Unlabelled):
        usual = ("label", *GRADE) if isinstance(task, Similarity) else CLASS
        found["label"] = find_column("label", task.label, usual, available, where)
    elif task.negative is not None:
        found["negative"] = find_column(
            "negative", task.negative, (task.negative,), available, where
        )
    return task.model_copy(update=found)


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
    task: Task,
    split: str,
    where: str,
    class_names: tuple[str, ...] | None = None,
) -> SplitRows:
    """Take the columns of a task from a table.

    Raises:
        InputError: no rows, a missing column, a text that is missing, blank or not text, a missing label.
    """
    others = (*label_columns(task), *negative_columns(task))
    require_columns(table.column_names, (*text_columns(task), *others), where)
    texts = [checked_texts(table.column(name), name, where) for name in text_columns(task)]
    labels = [_checked_label(table.column(name), name, where) for name in label_columns(task)]
    negatives = [checked_negatives(table.column(n), n, where) for n in negative_columns(task)]
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
