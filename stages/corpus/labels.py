"""Converting labels as read into class indices or scores. No guessing: odd labels are refused by row."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.values import holds_text
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_EXACT = 2.0**53
"""Floats beyond are no longer single whole numbers."""


def class_indices(
    splits: Sequence[SplitRows],
) -> tuple[list[NDArray[np.float64] | None], tuple[str, ...]]:
    """Class indices of every split as float64 `[n_rows]`, and the names of the classes.

    Classes declared by the source keep their order; otherwise integers are sorted by value and strings
    alphabetically, and the class index is the position.

    Args:
        splits: every split, with labels.

    Raises:
        InputError: labels are not classes, have different types, or do not occur in train.
    """
    declared = {s.class_names for s in splits}
    if len(declared) > 1:
        raise InputError(
            f"the splits declare different classes: {' / '.join(map(str, declared))}; give them "
            "the same"
        )
    values = [_classes(s) for s in splits]
    names = declared.pop()
    if names is not None:
        return [_checked_range(v, names, s) for v, s in zip(values, splits, strict=True)], names
    return _indices(values, splits)


def require_told_apart(classes: Iterable[str | int], name: str, where: str) -> None:
    """Check that no two classes differ in spaces alone; raises InputError if they do."""
    trimmed: dict[str, str | int] = {}
    for one in classes:
        if (other := trimmed.setdefault(str(one).strip(), one)) != one:
            raise InputError(
                f"column {quoted(name)} of {where} holds the classes {quoted(other)} and {quoted(one)}, "
                "which differ in spaces alone; write them alike"
            )


def _column(split: SplitRows) -> pa.ChunkedArray:
    assert split.label is not None, "a labelled task without labels"
    return split.label


def _held(column: pa.ChunkedArray) -> str:
    return "text" if holds_text(column.type) else str(column.type)


def _value(column: pa.ChunkedArray, row: int) -> object:
    return column.slice(row, 1).to_pylist()[0]


def scores(split: SplitRows) -> NDArray[np.float64]:
    """Graded labels, unchanged, float64 `[n_rows]`.

    Args:
        split: with labels.

    Raises:
        InputError: a label is not a finite number.
    """
    column = _column(split)
    if not _is_number(column.type):
        row = next((r for r, v in enumerate(column.to_pylist()) if not _reads_as_number(v)), 0)
        raise InputError(
            f"column {quoted(split.label_name)} of {split.where} holds {_held(column)} (row "
            f"{split.number(row)}: {quoted(_value(column, row))}), expected numbers: a similarity is graded; "
            "remove or repair the rows that are not numbers"
        )
    # Whole numbers that a float does not hold exactly are rounded.
    values = column.cast(pa.float64(), safe=False).to_numpy()
    _refuse_first(~np.isfinite(values), split, "is not a finite score; remove or repair it")
    return values


def _classes(split: SplitRows) -> NDArray[np.int64] | NDArray[np.object_]:
    column = _column(split)
    kind = column.type
    if holds_text(kind):
        names = np.array(column.to_pylist(), dtype=object)
        blank = np.array([not label.strip() for label in names], dtype=np.bool_)
        _refuse_first(blank, split, "is empty or blank; remove the row or fill it")
        return names
    if pa.types.is_uint64(kind):
        beyond = column.to_numpy() > np.iinfo(np.int64).max
        _refuse_first(beyond, split, "is too large for a class; number the classes from 0")
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.int64()).to_numpy()
    if _is_number(kind):
        numbers = column.cast(pa.float64()).to_numpy()
        # A column of integers that once had gaps is often stored as float.
        broken = ~(np.abs(numbers) < _EXACT) | (numbers != np.round(numbers))
        _refuse_first(
            broken,
            split,
            "is not a class; use whole numbers or names (in csv, 1.1 is a number with quotation marks, too; "
            "v1.1 is a name), or kind 'similarity'",
        )
        return numbers.astype(np.int64)
    raise InputError(
        f"column {quoted(split.label_name)} of {split.where} holds {kind}, such as "
        f"{quoted(_value(column, 0))}, expected classes: integers or strings; convert the column to text"
    )


def _reads_as_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _refuse_first(broken: NDArray[np.bool_], split: SplitRows, problem: str) -> None:
    if broken.any():
        row = int(broken.argmax())
        raise InputError(
            f"row {split.number(row)} of {split.where}: the label {quoted(_value(_column(split), row))} in "
            f"column {quoted(split.label_name)} {problem} ({int(broken.sum())} such of {len(broken)} rows)"
        )


def _checked_range(
    values: NDArray[np.int64] | NDArray[np.object_],
    names: tuple[str, ...],
    split: SplitRows,
) -> NDArray[np.float64]:
    indices = values.astype(np.int64)
    _refuse_first(
        (indices < 0) | (indices >= len(names)),
        split,
        f"is none of the {len(names)} declared classes; -1 means that the labels of this split "
        "are hidden, so use a split that has them",
    )
    return indices.astype(np.float64)


def _indices(
    values: list[NDArray[np.int64] | NDArray[np.object_]], splits: Sequence[SplitRows]
) -> tuple[list[NDArray[np.float64] | None], tuple[str, ...]]:
    name = splits[0].label_name
    if len({v.dtype == object for v in values}) > 1:
        kinds = ", ".join(f"{_held(_column(s))} in {s.where}" for s in splits)
        raise InputError(
            f"the labels in column {quoted(name)} are of different types: {kinds}; use one type "
            "everywhere"
        )
    train = [v for v, s in zip(values, splits, strict=True) if s.split == "train"]
    classes: list[str] | list[int] = np.unique(np.concatenate(train or values)).tolist()
    for value, split in zip(values, splits, strict=True):
        if classes != [-1, 1] and value.dtype != object:
            _refuse_first(
                np.asarray(value < 0),
                split,
                "is negative; -1 usually means 'no label', so remove these rows or number the "
                "classes from 0",
            )
        _refuse_first(
            ~np.isin(value, np.array(classes, dtype=value.dtype)),
            split,
            f"never occurs in train, which has {', '.join(map(quoted, classes[:20]))}; correct it or "
            "add it there",
        )
    require_told_apart(classes, name, splits[0].where)
    if len(classes) < 2:
        raise InputError(
            f"column {quoted(name)} of {splits[0].where} holds only the class {quoted(classes[0])}; a "
            "classification needs two or more"
        )
    order = np.array(classes, dtype=values[0].dtype)
    if all(pa.types.is_boolean(_column(s).type) for s in splits):
        return [np.searchsorted(order, v).astype(np.float64) for v in values], ("false", "true")
    names = tuple(str(v) for v in classes)
    return [np.searchsorted(order, v).astype(np.float64) for v in values], names
