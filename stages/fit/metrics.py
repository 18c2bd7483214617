"""Classification metrics on class indices."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage.errors import InputError

Metric = Literal["accuracy", "mcc", "f1"]


def evaluate(metric: Metric, labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> float:
    """A metric, 1 at best.

    `mcc` is Matthews' correlation for any number of classes, 0 where a side is constant (as in
    scikit-learn); `f1` is that of class 1 of two, 0 where it is neither predicted nor present.

    Raises:
        InputError: f1 of more than two classes.
    """
    if metric == "accuracy":
        return float(np.mean(labels == predictions))
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
