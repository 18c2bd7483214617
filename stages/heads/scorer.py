"""The learned readout: a two-layer scorer, a softmax over tokens, a weighted sum.

Source: GLOT's readout (equation 3) and its "AdaPool" baseline, as released. Brothers' AdaPool
(cross-attention with the mean token as query) is a different method.
Axes: t tokens of all texts, n texts, d input width, s hidden width of the scorer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.heads.head import Head

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.pooling import Pooling


class ScorerHead(Head):
    """A weighted sum of tokens with weights from a two-layer scorer (what GLOT calls AdaPool)."""

    kind: Literal["scorer"] = "scorer"
    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Hidden width of the scorer. 256 is the released code's default; the paper's 2.1M parameters at
    d_model 4096 correspond to 512."""

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See `ScorerPooling`."""
        from permafrost.stages.heads.readout import ScorerPooling

        return ScorerPooling(d_in, self.hidden, generator)
