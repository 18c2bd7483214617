"""The rank of a pair's partner among all partners.

Axes: u distinct texts, d width, p pairs, m distinct second texts.
"""

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from permafrost.stages.fit.losses.loss import VectorSimilarity
from permafrost.storage.ragged import ranges

_PAIRS_AT_A_TIME = 256
_ROUNDING = 1e-12
"""Similarities that differ by less, relative to the norms of the vectors, count as equal."""


def partner_ranks(
    vectors: Float64[np.ndarray, "u d"],
    sides: Int64[np.ndarray, "2 p"],
    similarity: VectorSimilarity,
) -> tuple[Int64[np.ndarray, " p"], Float64[np.ndarray, " p"]]:
    """Rank (from 1) of every pair's second text among all second texts, by similarity to the first.

    Ties count against the partner. The first text itself and its partners in other pairs are not ranked.

    Args:
        vectors: one per distinct text.
        sides: first and second text of each pair, as rows of `vectors`.
        similarity: under `cosine` a zero vector has similarity 0 to everything.

    Returns:
        The ranks, and the similarity of each pair.
    """
    if similarity == "cosine":
        norms_U1 = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(norms_U1 > 0, norms_U1, 1)
    first_P, second_P = sides
    candidates_M, own_P = np.unique(second_P, return_inverse=True)
    candidates_MD = vectors[candidates_M]
    slack = _ROUNDING * np.linalg.norm(candidates_MD, axis=1).max()
    by_first = np.argsort(first_P, kind="stable")
    starts_P = np.searchsorted(first_P[by_first], first_P, side="left")
    counts_P = np.searchsorted(first_P[by_first], first_P, side="right") - starts_P
    ranks_P = np.empty(len(first_P), np.int64)
    similarities_P = np.empty(len(first_P), np.float64)
    for at in range(0, len(first_P), _PAIRS_AT_A_TIME):
        pairs = slice(at, at + _PAIRS_AT_A_TIME)
        queries_PD = vectors[first_P[pairs]]
        scores_PM = queries_PD @ candidates_MD.T
        similarities_P[pairs] = scores_PM[np.arange(len(queries_PD)), own_P[pairs]]
        threshold_P = similarities_P[pairs] - slack * np.linalg.norm(queries_PD, axis=1)
        ahead_PM = scores_PM >= threshold_P[:, None]
        ahead_PM[_partners(starts_P[pairs], counts_P[pairs], own_P[by_first])] = False
        ahead_PM[first_P[pairs, None] == candidates_M] = False
        ranks_P[pairs] = 1 + ahead_PM.sum(axis=1)
    return ranks_P, similarities_P


def _partners(
    starts_P: NDArray[np.int64], counts_P: NDArray[np.int64], own_of: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of all partners of each pair's first text."""
    return np.repeat(np.arange(len(starts_P)), counts_P), own_of[ranges(starts_P, counts_P)]
