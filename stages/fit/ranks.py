"""Where the partner of a pair stands among all partners.

Axes: u distinct texts, d width, p pairs, m distinct second texts.
"""

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from permafrost.stages.fit.losses.loss import VectorSimilarity
from permafrost.storage.ragged import ranges

_PAIRS_AT_A_TIME = 256
_ROUNDING = 1e-12
"""Similarities that differ by less, relative to the lengths of the vectors, differ by rounding only."""


def partner_ranks(
    vectors: Float64[np.ndarray, "u d"],
    sides: Int64[np.ndarray, "2 p"],
    similarity: VectorSimilarity,
) -> tuple[Int64[np.ndarray, " p"], Float64[np.ndarray, " p"]]:
    """Rank (from 1) of every pair's second text among all second texts, as near to the first.

    A text that is as near as the partner stands before it. The first text itself and its partners in
    other pairs are no rivals.

    Args:
        vectors: one per distinct text.
        sides: first and second text of each pair, as rows of `vectors`.
        similarity: what near means; under `cosine` a vector of zeros is near to nothing.

    Returns:
        The ranks, and the similarity of each pair.
    """
    if similarity == "cosine":
        norms_U1 = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms_U1 > 0, norms_U1, 1)
    first_P, second_P = sides
    rivals_M, own_P = np.unique(second_P, return_inverse=True)
    rivals_MD = vectors[rivals_M]
    slack = _ROUNDING * np.linalg.norm(rivals_MD, axis=1).max()
    by_first = np.argsort(first_P, kind="stable")
    starts_P = np.searchsorted(first_P[by_first], first_P, side="left")
    counts_P = np.searchsorted(first_P[by_first], first_P, side="right") - starts_P
    ranks_P = np.empty(len(first_P), np.int64)
    near_P = np.empty(len(first_P), np.float64)
    for at in range(0, len(first_P), _PAIRS_AT_A_TIME):
        mine = slice(at, at + _PAIRS_AT_A_TIME)
        asked_PD = vectors[first_P[mine]]
        found_PM = asked_PD @ rivals_MD.T
        near_P[mine] = found_PM[np.arange(len(asked_PD)), own_P[mine]]
        least_P = near_P[mine] - slack * np.linalg.norm(asked_PD, axis=1)
        before_PM = found_PM >= least_P[:, None]
        before_PM[_partners(starts_P[mine], counts_P[mine], own_P[by_first])] = False
        before_PM[first_P[mine, None] == rivals_M] = False
        ranks_P[mine] = 1 + before_PM.sum(axis=1)
    return ranks_P, near_P


def _partners(
    starts_P: NDArray[np.int64], counts_P: NDArray[np.int64], own_of: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of all partners of each pair's first text."""
    return np.repeat(np.arange(len(starts_P)), counts_P), own_of[ranges(starts_P, counts_P)]
