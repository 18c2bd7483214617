"""Which class is taken for which."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

MAX_CLASSES = 12
"""Matrices of more classes are unreadable; their most frequent confusions are listed instead."""
N_LISTED = 15


@dataclass(frozen=True)
class Confused:
    """One class taken for another."""

    label: str
    prediction: str
    n: int
    share: float
    """Of the examples with this label."""


@dataclass(frozen=True)
class Confusion:
    """Counts of labels against predictions."""

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """Labels down, predictions across; empty where there are more than `MAX_CLASSES` classes."""
    confused: tuple[Confused, ...]
    """The most frequent ones of more classes, at most `N_LISTED`; otherwise empty."""
    n_wrong: int


def confusion(
    labels: Float64[np.ndarray, " n"],
    predictions: Float64[np.ndarray, " n"],
    names: Sequence[str],
) -> Confusion:
    """Count class indices against each other."""
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (labels.astype(np.int64), predictions.astype(np.int64)), 1)
    is_small = len(names) <= MAX_CLASSES
    return Confusion(
        names=tuple(names),
        counts=tuple(tuple(row) for row in counts.tolist()) if is_small else (),
        confused=() if is_small else _most_frequent(counts, names),
        n_wrong=int(counts.sum() - np.trace(counts)),
    )


def _most_frequent(counts: NDArray[np.int64], names: Sequence[str]) -> tuple[Confused, ...]:
    wrong = counts - np.diag(np.diag(counts))
    order: list[int] = np.argsort(-wrong, axis=None, kind="stable")[:N_LISTED].tolist()
    cells: list[tuple[int, int]] = [divmod(place, len(names)) for place in order]
    return tuple(
        Confused(names[i], names[j], int(wrong[i, j]), float(wrong[i, j] / counts[i].sum()))
        for i, j in cells
        if wrong[i, j]
    )
