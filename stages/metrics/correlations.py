"""Correlations, 0 where a side is constant (as Matthews' correlation in `stages.fit.metrics`)."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray


def pearson(a: Float64[np.ndarray, " n"], b: Float64[np.ndarray, " n"]) -> float:
    """Linear correlation."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.clip(_direction(a) @ _direction(b), -1, 1))


def spearman(a: Float64[np.ndarray, " n"], b: Float64[np.ndarray, " n"]) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    return pearson(ranks(a), ranks(b))


def _direction(values: NDArray[np.float64]) -> NDArray[np.float64]:
    # By the largest value first: squares of a huge or tiny scale would leave the range of floats.
    scaled = values / np.abs(values).max()
    centred = scaled - scaled.mean()
    return centred / np.linalg.norm(centred)


def ranks(values: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Place of each value in ascending order, from 1; equal values share the mean of their places."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]
