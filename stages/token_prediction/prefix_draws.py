"""Prefixes of texts, drawn by a seed: whose vectors are asked for the tokens that follow.

Source: Value Aggregation, appendix E: 1,600 examples of a text and the length t of its prefix, t from 50 to
150. It does not say how they are drawn.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from permafrost.stages.bounds import MAX_STEPS, MAX_TEXTS
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.storage.errors import InputError


class Prefixes(BaseModel):
    """How many prefixes of which lengths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(default=1600, ge=1, le=MAX_TEXTS)
    """Of all texts, at most: one of each text, then a second one of each, and so on."""
    shortest: int = Field(default=50, ge=1, le=MAX_STEPS)
    """In tokens of the text itself."""
    longest: int = Field(default=150, ge=1, le=MAX_STEPS)
    """Every length from the shortest to this is equally likely, as far as the text is long enough."""

    @model_validator(mode="after")
    def _has_a_length(self) -> "Prefixes":
        if self.longest < self.shortest:
            raise ValueError(f"shortest is {self.shortest}, but longest is {self.longest}")
        return self


def draw_prefixes(
    config: Prefixes, encoded: Encoded, offsets: Sequence[int], seed: int, max_length: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Texts and lengths of the prefixes drawn, in the order of the texts, no prefix twice.

    Every prefix has a token at every offset behind it, so that all offsets are asked of the same prefixes.
    What is drawn of a text depends on the seed and on its tokens alone.

    Args:
        config: how many, and of which lengths.
        encoded: the texts.
        offsets: of the tokens that are asked for.
        seed: decides what is drawn.
        max_length: tokens per input at which the texts were cut, for messages.

    Returns:
        Index of the text, and the prefix's tokens of the text itself, for each example.

    Raises:
        InputError: no text is long enough.
    """
    drawn: list[tuple[int, float, int, int]] = []
    n_own = (encoded.span_end - encoded.span_start).tolist()
    for i, (ids, n) in enumerate(zip(encoded.token_ids, n_own, strict=True)):
        lengths = np.arange(config.shortest, min(config.longest, n - max(offsets)) + 1)
        rng = np.random.default_rng(_entropy(seed, ids))
        place = float(rng.random())
        drawn += [(turn, place, i, t) for turn, t in enumerate(rng.permutation(lengths).tolist())]
    if not drawn:
        is_cut = encoded.truncated.any()
        within, longer = ("", "give longer texts")
        if is_cut:
            within, longer = f" within max_length {max_length}", "raise max_length"
        raise InputError(
            f"no text has {config.shortest + max(offsets)} tokens{within}, which the shortest prefix and the "
            f"farthest offset need; the longest has {max(n_own)}. Lower prefixes.shortest or leave far "
            f"offsets out, or {longer}"
        )
    kept = sorted((i, t) for _, _, i, t in sorted(drawn)[: config.n])
    texts, lengths = np.array(kept, dtype=np.int64).T
    return texts, lengths


def _entropy(seed: int, ids: NDArray[np.integer]) -> int:
    tokens = np.asarray(ids, dtype="<i8").tobytes()
    return int.from_bytes(hashlib.sha256(f"{seed}:".encode() + tokens).digest()[:16], "big")
