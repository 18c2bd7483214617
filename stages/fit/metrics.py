"""Metrics on class indices, graded scores and ranks."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.storage.errors import InputError

Metric = Literal["accuracy", "mcc", "f1", "spearman", "pearson", "spearman_pearson", "mrr"]

_CLASSES: tuple[Metric, ...] = ("accuracy", "mcc", "f1")
METRICS: dict[TaskKind, tuple[Metric, ...]] = {
    "classification": _CLASSES,
    "pair_classification": _CLASSES,
    "similarity": ("spearman", "pearson", "spearman_pearson"),
    "unlabelled": ("mrr",),
}
"""Kind of task to the metrics that mean something for it."""

DEFAULT_METRIC: dict[TaskKind, Metric] = {
    "classification": "accuracy",
    "pair_classification": "accuracy",
    "similarity": "spearman_pearson",
    "unlabelled": "mrr",
}
"""Kind of task to what is compared where nothing is said; GLOT chooses STS-B's epoch by the mean of both."""


def evaluate(metric: Metric, labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    """A metric, 1 at best.

    `mcc` is Matthews' correlation for any number of classes, 0 where a side is constant (as in
    scikit-learn), as are the correlations `spearman` and `pearson`; `f1` is that of class 1 of two, 0
    where it is neither predicted nor present; `mrr` is the mean of 1 / prediction, a prediction being
    the rank of the right answer.

    Args:
        metric: which.
        labels: class indices, or graded scores; `mrr` does not look at them.
        predictions: class indices, scores or ranks, one per label.

    Raises:
        InputError: f1 of more than two classes.
    """
    match metric:
        case "accuracy":
            return float(np.mean(labels == predictions))
        case "mcc" | "f1":
            return _from_counts(metric, labels, predictions)
        case "mrr":
            return float(np.mean(1 / predictions))
    a, b = labels.astype(np.float64), predictions.astype(np.float64)
    match metric:
        case "spearman":
            return spearman(a, b)
        case "pearson":
            return pearson(a, b)
        case "spearman_pearson":
            return (spearman(a, b) + pearson(a, b)) / 2


def _from_counts(
    metric: Literal["mcc", "f1"], labels: NDArray[np.int64], predictions: NDArray[np.int64]
) -> float:
    n_classes = max(2, int(max(labels.max(), predictions.max())) + 1)
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, (labels, predictions), 1)
    if metric == "f1":
        if n_classes > 2:
            raise InputError(
                f"f1 is that of class 1 of two, but there are {n_classes} classes; use accuracy or mcc"
            )
        found = counts[1].sum() + counts[:, 1].sum()
        return float(2 * counts[1, 1] / found) if found else 0.0
    truth, guess, total = counts.sum(axis=1), counts.sum(axis=0), counts.sum()
    covariance = np.trace(counts) * total - truth @ guess
    spread = (total**2 - truth @ truth) * (total**2 - guess @ guess)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def majority_rate(labels: NDArray[np.int64]) -> float:
    """Share of the most frequent class: what a constant answer scores."""
    return float(np.bincount(labels).max() / len(labels))


def class_balance(labels: NDArray[np.int64], label_names: Sequence[str]) -> dict[str, float]:
    """Share of each class."""
    counts = np.bincount(labels, minlength=len(label_names))
    return dict(zip(label_names, (counts / len(labels)).tolist(), strict=True))
