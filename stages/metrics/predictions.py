"""One prediction per example: the table that every scored method writes, and how to read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from permafrost.stages.metrics.records import write_metrics
from permafrost.storage.errors import CorruptDataError

PREDICTIONS = "predictions.parquet"
MEANS = frozenset({"ndcg_at_10"})
"""Metrics that are the mean of the predictions: what is kept of a query is its own score."""


def predictions_table(
    split: str,
    sides: Sequence[NDArray[np.int64]],
    labels: NDArray[Any],
    predictions: NDArray[Any],
    scores: NDArray[Any] | None = None,
) -> pa.Table:
    """Predictions of one split: columns split, text, text_b (pairs only), label, prediction, score.

    Args:
        split: its name.
        sides: `[n]` each, indices in the corpus of the first and, for pairs, of the second text.
        labels: `[n]`.
        predictions: `[n]`, comparable with the labels.
        scores: `[n]`, the numbers behind the predictions; None if there are none.
    """
    n = len(labels)
    texts = dict(zip(("text", "text_b"), sides, strict=False))
    return pa.table(
        {
            "split": pa.array([split] * n, pa.string()),
            **{name: pa.array(side, pa.int64()) for name, side in texts.items()},
            "label": _floats(labels),
            "prediction": _floats(predictions),
            "score": pa.nulls(n, pa.float64()) if scores is None else _floats(scores),
        }
    )


@dataclass(frozen=True)
class Scores:
    """Metrics, and one prediction per example."""

    metrics: dict[str, Any]
    """The fields of `records.Metrics`, and any others; None for a missing split."""
    predictions: pa.Table
    """See `predictions_table`."""

    def save(self, folder: Path) -> None:
        """Write metrics.json and predictions.parquet."""
        write_metrics(folder, self.metrics)
        pq.write_table(self.predictions, folder / PREDICTIONS)


@dataclass(frozen=True)
class Answers:
    """Predictions of one split."""

    sides: tuple[NDArray[np.int64], ...]
    """`[n]` each: the first and, for pairs, the second text."""
    labels: NDArray[np.float64]
    predictions: NDArray[np.float64]
    scores: NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.labels)

    def same_examples(self, other: object) -> bool:
        """Whether both answer the same texts with the same labels."""
        if not isinstance(other, Answers):
            return False
        own, others = ((*a.sides, a.labels) for a in (self, other))
        return len(own) == len(others) and all(map(np.array_equal, own, others))


def read_answers(folder: Path, split: str = "test") -> Answers | None:
    """The predictions in a folder of results, in an order that depends on texts and labels alone; None if
    they were not kept.

    Raises:
        CorruptDataError: see `written_answers`.
    """
    if (answers := written_answers(folder, split)) is None:
        return None
    order = np.lexsort((answers.labels, *reversed(answers.sides)))
    return Answers(
        sides=tuple(side[order] for side in answers.sides),
        labels=answers.labels[order],
        predictions=answers.predictions[order],
        scores=None if answers.scores is None else answers.scores[order],
    )


def written_predictions(folder: Path, split: str) -> pa.Table | None:
    """The rows of a split in a folder of results, as they were written; None if they were not kept.

    Raises:
        CorruptDataError: the file cannot be read, or has no splits.
    """
    path = folder / PREDICTIONS
    if not path.exists():
        return None
    try:
        table = pq.read_table(path)
        return table.filter(pc.equal(table.column("split"), split))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptDataError(
            f"{path} holds no predictions ({error}); delete the artifact and score it again"
        ) from error


def written_answers(folder: Path, split: str) -> Answers | None:
    """The same in the order of the file.

    Raises:
        CorruptDataError: the file cannot be read, or lacks a column.
    """
    rows = written_predictions(folder, split)
    return None if rows is None else answers_in(rows, folder)


def answers_in(rows: pa.Table, folder: Path) -> Answers:
    """The same of rows that were read from a folder's file. Raises: CorruptDataError: a column is missing."""
    try:
        sides = [rows.column(n).to_numpy() for n in ("text", "text_b") if n in rows.column_names]
        labels, predictions = (
            rows.column(n).to_numpy().astype(np.float64) for n in ("label", "prediction")
        )
        scores_column = rows.column("score") if "score" in rows.column_names else None
    except (pa.ArrowException, KeyError) as error:
        raise CorruptDataError(
            f"{folder / PREDICTIONS} holds no predictions ({error}); delete the artifact and score it again"
        ) from error
    scores = (
        None
        if scores_column is None or scores_column.null_count
        else scores_column.to_numpy().astype(np.float64)
    )
    return Answers(tuple(side.astype(np.int64) for side in sides), labels, predictions, scores)


def _floats(values: NDArray[Any]) -> pa.Array:
    return pa.array(values.astype(np.float64), pa.float64())
