"""The choice with the highest score, where several may have it.

A model may not be able to tell choices apart: one that reads graphs alone, where two choices have equal
graphs; one that reads texts, where these are cut before the choice at their end. The lowest position must not
win then, as in many sets of questions positions are not balanced.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.ragged import Ragged

TIED_ULPS = 16
"""Scores tie if they differ by no more than this many units in the last place of float32, of the highest
score or of 1, whichever is larger: equal graphs at other rows of a batch differ by rounding (a few units)."""


def chosen(scores: NDArray[np.float64], digests: Sequence[str], seed: int, case: int) -> int:
    """The choice with the highest score; of several that tie, the one with the lowest hash of seed, case and
    text, so that each is as likely, wherever it stands. Equal texts differ by their positions alone, so of
    these the hash counts the position too. Without the case, one choice would win in every question that has
    the same texts.

    Args:
        scores: of a question's choices, computed in float32.
        digests: of their texts.
        seed: of the training.
        case: number of the question in its split.
    """
    tied = _tied(scores)
    if len(tied) == 1:
        return tied[0]
    return min(
        tied,
        key=lambda choice: (
            _drawn(seed, case, digests[choice]),
            _drawn(seed, case, digests[choice], str(choice)),
        ),
    )


def n_drawn(scores: Ragged, kinds: NDArray[np.int64]) -> int:
    """How many questions are answered by a draw: choices that differ tie for the highest score.

    Args:
        scores: of the choices of each question, computed in float32.
        kinds: a number for each choice, in the same order, equal for those that are the same one.
    """
    own = Ragged(kinds, scores.offsets)
    return sum(len({*own[n][_tied(scores[n])].tolist()}) > 1 for n in range(len(scores)))


def _tied(scores: NDArray[np.float64]) -> list[int]:
    highest = float(scores.max())
    slack = TIED_ULPS * float(np.finfo(np.float32).eps) * max(abs(highest), 1.0)
    return np.flatnonzero(scores >= highest - slack).tolist()


def _drawn(seed: int, case: int, *words: str) -> bytes:
    return hashlib.sha256(" ".join((str(seed), str(case), *words)).encode()).digest()
