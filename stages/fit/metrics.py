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
    "multiple_choice": ("accuracy",),
}
"""The metrics that are defined for each kind of task."""

DEFAULT_METRIC: dict[TaskKind, Metric] = {
    "classification": "accuracy",
    "pair_classification": "accuracy",
    "similarity": "spearman_pearson",
    "unlabelled": "mrr",
    "multiple_choice": "accuracy",
}
"""The default metric of each kind of task; GLOT chooses the epoch for STS-B by the mean of both."""


def evaluate(metric: Metric, labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    """Compute a metric; 1 is best.

    `mcc` is Matthews' correlation for any number of classes; like the correlations `spearman` and `pearson`
    it is 0 if either side is constant (as in scikit-learn). `f1` is that of class 1 of two, 0 if it is
    neither predicted nor present. `mrr` is the mean of 1 / prediction, where a prediction is the rank of the
    correct answer.

    Args:
        metric: name of the metric.
        labels: class indices, or graded scores; unused by `mrr`.
        predictions: class indices, scores or ranks, one per label.

    Raises:
        InputError: `f1` with more than two classes.
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


def evaluate_part(metric: Metric, labels: NDArray[Any], predictions: NDArray[Any]) -> float | None:
    """`evaluate` of some of the examples; None if their labels do not define the metric: a correlation, also
    Matthews', needs two that differ, and `f1` one of class 1."""
    is_defined = True
    if metric == "f1":
        is_defined = bool((labels == 1).any())
    elif metric not in ("accuracy", "mrr"):
        is_defined = bool(np.ptp(labels) > 0)
    return evaluate(metric, labels, predictions) if is_defined else None


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
        total = counts[1].sum() + counts[:, 1].sum()
        return float(2 * counts[1, 1] / total) if total else 0.0
    truth, guess, total = counts.sum(axis=1), counts.sum(axis=0), counts.sum()
    covariance = np.trace(counts) * total - truth @ guess
    spread = (total**2 - truth @ truth) * (total**2 - guess @ guess)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def majority_rate(labels: NDArray[np.int64]) -> float:
    """Share of the most frequent class: the accuracy of a constant answer."""
    return float(np.bincount(labels).max() / len(labels))


def class_balance(labels: NDArray[np.int64], label_names: Sequence[str]) -> dict[str, float]:
    """Share of each class."""
    counts = np.bincount(labels, minlength=len(label_names))
    return dict(zip(label_names, (counts / len(labels)).tolist(), strict=True))
