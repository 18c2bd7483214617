"""Predictions with the names of their classes, the ids of their examples and texts, and probabilities."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from numpy.typing import NDArray

from permafrost.storage.texts import Texts

CLASS = b"class"
"""Key in the metadata of a column of probabilities; its value is the name of the class."""


def probability_columns(classes: Sequence[str]) -> list[str]:
    """A column name per class: `probability_` and the name, with `_` for all but letters, digits and `_`.

    Classes whose columns would differ by case at most all have their number before the name, as many readers
    of tables do not tell such columns apart.
    """
    plain = [re.sub(r"\W", "_", name) for name in classes]
    if len({name.casefold() for name in plain}) < len(plain):
        plain = [f"{number}_{name}" for number, name in enumerate(plain)]
    return [f"probability_{name}" for name in plain]


def with_probabilities(
    table: pa.Table, classes: Sequence[str], probabilities: Float[np.ndarray, "n c"]
) -> pa.Table:
    """A table with a column of float32 for each class, in the order of `probability_columns`."""
    for name, column, values in zip(
        classes, probability_columns(classes), probabilities.T, strict=True
    ):
        field = pa.field(column, pa.float32(), metadata={CLASS: name.encode()})
        table = table.append_column(field, pa.array(values.astype(np.float32)))
    return table


def named_classes(numbers: NDArray[np.int64], classes: Sequence[str]) -> pa.DictionaryArray:
    """Names of classes as a column: each name once, and its number per row."""
    return pa.DictionaryArray.from_arrays(
        pa.array(numbers.astype(np.int32)), pa.array(list(classes), pa.string())
    )


def identified(
    table: pa.Table,
    examples: pa.Table | None,
    digests: Sequence[str],
    classes: Sequence[str],
    probabilities: Float[np.ndarray, "n c"] | None = None,
) -> pa.Table:
    """Predictions with what joins them to their corpus, and says them in words.

    Args:
        table: see `predictions_table`; of each split one row per example, in the order of the corpus.
        examples: of the corpus, with the column `split`; None where a row is no example of its own.
        digests: of its texts.
        classes: their names; empty if labels are not classes.
        probabilities: of each class, by row of `table`; None if there are none.

    Returns:
        The table with `example` (row in examples.parquet), `digest` and, of pairs, `digest_b` (as in
        texts.parquet); for classes `label_name` and `prediction_name`, and the columns of
        `with_probabilities`.
    """
    if examples is not None:
        splits = np.asarray(examples.column("split").to_pylist(), dtype=object)
        rows = [np.flatnonzero(splits == s) for s in table.column("split").unique().to_pylist()]
        table = table.append_column("example", pa.array(np.concatenate(rows), pa.int64()))
    known = pa.array(Texts.of(digests), pa.large_string()).cast(pa.string())
    for side, name in (("text", "digest"), ("text_b", "digest_b")):
        if side in table.column_names:
            table = table.append_column(name, known.take(table.column(side).combine_chunks()))
    if classes:
        for of in ("label", "prediction"):
            numbers = table.column(of).to_numpy().astype(np.int64)
            table = table.append_column(f"{of}_name", named_classes(numbers, classes))
    if probabilities is not None:
        table = with_probabilities(table, classes, probabilities)
    return table
