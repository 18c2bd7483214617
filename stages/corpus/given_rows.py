"""The rows that a source gives, checked once: a plug-in's may be other ones than `SplitRows` says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.corpus.columns import TaskColumns
from permafrost.stages.corpus.rows import Negatives, SplitRows
from permafrost.stages.corpus.values import checked_texts
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def checked_splits(found: object, task: TaskColumns, who: str) -> list[SplitRows]:
    """The splits of a corpus, with texts as `large_string`.

    Args:
        found: by its type a list of `SplitRows`.
        task: of the corpus.
        who: gave it, for messages.

    Raises:
        InputError: it is something else, columns are missing or differ in length, a text is missing, blank or
            not text, or a label is missing.
    """
    wanted = "return a list of SplitRows (permafrost.stages.corpus.rows), one per split"
    if not isinstance(found, list | tuple):
        raise InputError(f"{who} gave {type(found).__name__}; {wanted}")
    given = cast("Sequence[object]", found)
    if not given:
        raise InputError(f"{who} gave no split; {wanted}")
    splits = [one for one in given if isinstance(one, SplitRows)]
    if len(splits) < len(given):
        wrong = next(one for one in given if not isinstance(one, SplitRows))
        raise InputError(f"{who} gave {type(wrong).__name__} where a split belongs; {wanted}")
    names = [split.split for split in splits]
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            what = "is given twice" if isinstance(name, str) else "is no text"
            raise InputError(
                f"{who}: the split {quoted(name)} {what}; name each one, such as 'train'"
            )
    return [_checked(split, task, who) for split in splits]


def _checked(split: SplitRows, task: TaskColumns, who: str) -> SplitRows:
    of = f"{who}, split {quoted(split.split)}"
    class_names = _class_names(split.class_names, of)
    text = _texts(split, "text", split.text, of)
    pair, label = split.text_pair, split.label
    if pair is not None:
        pair = _texts(split, "text_pair", pair, of)
        _require_as_many(pair, "text_pair", text, of)
    elif len(task.text_columns) > 1:
        raise _lacks("text_pair", task, of)
    if label is not None:
        label = _column(label, "label", of)
        _require_as_many(label, "label", text, of)
        if (row := pc.index(label.is_null(), True).as_py()) >= 0:
            raise InputError(
                f"row {split.number(row)} of {split.where} ({of}) has no label ({label.null_count} such of "
                f"{label.length()} rows); leave the row out"
            )
    elif task.label_columns:
        raise _lacks("label", task, of)
    negatives = split.negatives
    if negatives is not None and not isinstance(negatives, Negatives):
        raise InputError(
            f"{of}: negatives is {type(negatives).__name__}, expected Negatives "
            "(permafrost.stages.corpus.rows) or None"
        )
    if negatives is not None and len(negatives.rows):
        texts = _column(negatives.texts, "negatives", of)
        texts = checked_texts(texts, negatives.column, f"{split.where} ({of})", negatives.rows)
        negatives = replace(negatives, texts=texts)
    return replace(
        split, text=text, text_pair=pair, label=label, class_names=class_names, negatives=negatives
    )


def _class_names(given: object, of: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = cast("Sequence[object]", given) if isinstance(given, list | tuple) else None
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"{of}: class_names is {quoted(given)}; give the name of each class as text, in the order of the "
            "labels 0, 1, ..., or None where labels are the names"
        )
    return tuple(map(str, names))


def _texts(split: SplitRows, name: str, given: object, of: str) -> pa.ChunkedArray:
    return checked_texts(_column(given, name, of), name, f"{split.where} ({of})", split.numbers)


def _column(given: object, name: str, of: str) -> pa.ChunkedArray:
    if isinstance(given, pa.Array):
        return pa.chunked_array([given])
    if not isinstance(given, pa.ChunkedArray):
        kind = "int64" if name == "label" else "large_string"
        raise InputError(
            f"{of}: {name} is {type(given).__name__}, expected a column of pyarrow, such as "
            f"pa.chunked_array([values], pa.{kind}())"
        )
    return given


def _require_as_many(column: pa.ChunkedArray, name: str, text: pa.ChunkedArray, of: str) -> None:
    if column.length() != text.length():
        raise InputError(
            f"{of}: there are {text.length()} texts and {column.length()} values of {name}; give one per text"
        )


def _lacks(name: str, task: TaskColumns, of: str) -> InputError:
    kind: str = getattr(task, "kind", type(task).__name__)
    return InputError(
        f"{of}: {name} is missing, and columns() says that the task is of kind {quoted(kind)}, which has it; "
        f"give {name}, or another task"
    )
