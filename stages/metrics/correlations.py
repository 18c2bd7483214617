"""Correlations; 0 if either side is constant (as for Matthews' correlation in `stages.fit.metrics`)."""

from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray


def pearson(a: Float64[np.ndarray, " n"], b: Float64[np.ndarray, " n"]) -> float:
    """Linear correlation."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.clip(_direction(a) @ _direction(b), -1, 1))


def spearman(a: Float64[np.ndarray, " n"], b: Float64[np.ndarray, " n"]) -> float:
    """Rank correlation, as scipy computes it; equal values share the mean of their ranks."""
    # Imported here: scipy.stats takes half a second, which `plan` and a run of cached stages should not pay.
    from scipy.stats import spearmanr

    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    # Untyped: a correlation and its p-value.
    result: Any = spearmanr(a, b)
    return float(result.statistic)


def _direction(values: NDArray[np.float64]) -> NDArray[np.float64]:
    # Divided by the largest value first, as squares of huge or tiny values would over- or underflow.
    scaled = values / np.abs(values).max()
    centred = scaled - scaled.mean()
    return centred / np.linalg.norm(centred)
