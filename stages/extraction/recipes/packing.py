"""Inputs of single texts, packed into one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.extraction.recipes.encoded import Encoded
from permafrost.storage.ragged import Ragged


@dataclass(frozen=True)
class TextInput:
    """Model input of one text; the fields of `Encoded`."""

    ids: NDArray[Any]
    span: NDArray[np.bool_]
    start: int
    end: int
    truncated: bool
    copies: NDArray[np.int64] | None = None


def pack(inputs: Sequence[TextInput]) -> Encoded:
    """Inputs of one recipe: copies in all of them or in none."""
    copies = [x.copies for x in inputs if x.copies is not None]
    return Encoded(
        token_ids=Ragged.from_arrays([np.asarray(x.ids, dtype=np.int32) for x in inputs]),
        span=Ragged.from_arrays([x.span for x in inputs]),
        span_start=np.asarray([x.start for x in inputs], dtype=np.int64),
        span_end=np.asarray([x.end for x in inputs], dtype=np.int64),
        truncated=np.asarray([x.truncated for x in inputs], dtype=np.bool_),
        copies=Ragged.from_arrays(copies) if copies else None,
    )


def between(start: int, end: int, n_tokens: int) -> NDArray[np.bool_]:
    """Mask `[n_tokens]` of start..end-1."""
    places = np.arange(n_tokens)
    return (places >= start) & (places < end)
