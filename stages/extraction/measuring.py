"""How long texts are under a recipe, without keeping their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.errors import InputError

_AT_A_TIME = 256
"""Texts whose tokens are in memory together."""


@dataclass(frozen=True)
class Measured:
    """The fields of `Encoded` that a layout needs."""

    lengths: Int64[np.ndarray, " n"]
    """Tokens of the input."""
    span_start: Int64[np.ndarray, " n"]
    span_end: Int64[np.ndarray, " n"]
    truncated: Bool[np.ndarray, " n"]


def measure(target: ExtractTarget, texts: Sequence[str]) -> Measured:
    """Tokenise texts, some at a time; at least one.

    Raises:
        InputError: a text cannot be used; counted from the first of `texts`.
    """
    parts: list[Measured] = []
    for at in range(0, len(texts), _AT_A_TIME):
        some = texts[at : at + _AT_A_TIME]
        try:
            found = encode(target.recipe, target.tokenizer, some, target.max_length)
        except InputError:
            # Again with those before it, so that the message counts as the caller does.
            encode(target.recipe, target.tokenizer, texts[: at + len(some)], target.max_length)
            raise
        parts.append(
            Measured(found.token_ids.lengths, found.span_start, found.span_end, found.truncated)
        )
    columns = zip(*((p.lengths, p.span_start, p.span_end, p.truncated) for p in parts), strict=True)
    return Measured(*(np.concatenate(column) for column in columns))
