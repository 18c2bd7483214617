"""Model input of several texts: token ids, spans, and what is copied or contrasted on the way."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64
from numpy.typing import NDArray

from permafrost.storage.ragged import Ragged

PLACEHOLDER = -1
"""Id of a local placeholder, which no vocabulary has: `<PST>` in the papers."""
OPENING = -2
"""Id of a global placeholder, before the whole text: `<B-PST>` in the paper."""


@dataclass(frozen=True)
class Encoded:
    """Model input of several texts."""

    token_ids: Ragged
    """int32; placeholders are PLACEHOLDER or OPENING."""
    span: Ragged
    """bool: poolings run over this token."""
    span_start: Int64[np.ndarray, " n"]
    """First token of the text itself, counted from the input's first token."""
    span_end: Int64[np.ndarray, " n"]
    """One past the last token of the text itself."""
    truncated: Bool[np.ndarray, " n"]
    """Whether the text was cut to fit."""
    copies: Ragged | None = None
    """int64, per text rows of [source, target], `[n_copies, 2]`, counted from the input's first token:
    before a rewired block the state of the source is written over that of the target. None: nothing is
    rewired."""
    auxiliary: "Encoded | None" = None
    """Contrastive prompting: the same texts under the auxiliary prompt. None: nothing is contrasted."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def take(self, members: NDArray[np.int64]) -> "Encoded":
        """The texts `members`, in that order."""
        return Encoded(
            token_ids=self.token_ids.take(members),
            span=self.span.take(members),
            span_start=self.span_start[members],
            span_end=self.span_end[members],
            truncated=self.truncated[members],
            copies=None if self.copies is None else self.copies.take(members),
            auxiliary=None if self.auxiliary is None else self.auxiliary.take(members),
        )
