"""Which tokens a vector has to predict."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from permafrost.storage.ragged import Ragged

NOWHERE = -1
"""Target of a vector that has none at an offset."""


def following_tokens(
    token_ids: Ragged,
    start: Int64[np.ndarray, " n_texts"],
    end: Int64[np.ndarray, " n_texts"],
    offsets: Sequence[int],
) -> Int64[np.ndarray, "n_tokens n_offsets"]:
    """For every token of every input, the tokens that follow it at these offsets.

    Asked for are tokens of the text itself, of the tokens in it and of the one directly before it, which
    sees nothing of the text; NOWHERE for all others.

    Args:
        token_ids: `[n_tokens]` of each input.
        start: first token of the text itself, counted from the input's first.
        end: one past its last.
        offsets: 1 is the next token.
    """
    parts = [
        np.stack([_at(ids, int(s), int(e), o) for o in offsets], axis=1)
        for ids, s, e in zip(token_ids, start, end, strict=True)
    ]
    return np.concatenate(parts)


def _at(ids: NDArray[np.integer], start: int, end: int, offset: int) -> NDArray[np.int64]:
    targets = np.full(len(ids), NOWHERE, dtype=np.int64)
    first = max(start - 1, 0)
    targets[first : max(end - offset, first)] = ids[first + offset : end]
    return targets
