"""AdaPool: one query computed from the tokens attends to all of them.

Source: Brothers, "Robust noise attenuation via adaptive pooling of transformer outputs"
(arXiv:2506.09215), as in its released module: no biases, scores divided by the square root of the tokens'
width, which all attention heads share, and the query added to the output only if it is a single token. The
method that GLOT calls AdaPool is the scorer.

We differ in that the width of attention heads need not follow from the tokens' width, as it does in the
source, and in that a mean query leaves out padding (there it is over all slots). Three things are left out:
dropout (0 by default there, .1 in its image experiments), the mean of chosen tokens as a query, and the
embedding that marks the query before the source's own transformer, which we do not train.
Axes: t tokens of all texts, n texts, b texts of a block, l length of its longest, d input width, h
attention heads, k width of an attention head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.heads.head import Head
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.pooling import Pooling


class AdaPoolHead(Head):
    """Multi-head attention of one query, computed from the tokens, to all tokens (Brothers' AdaPool).

    What GLOT calls AdaPool is `ScorerHead`.
    """

    kind: Literal["adapool"] = "adapool"
    query: Literal["mean", "first", "last"] = "mean"
    """The query: the mean of the tokens, or one token, which is then added to the output."""
    heads: int = Field(default=8, ge=1, le=MAX_WIDTH)
    """Attention heads."""
    d_head: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Width of an attention head; None for the tokens' width divided by `heads`, as in the source, which has
    to be a whole number."""
    scale: Literal["width", "head"] = "width"
    """Scores are divided by the square root of this: the total width of all attention heads, as in the
    source, or the width of one, as in transformers. With a single head both are the same."""

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See `AdaPooling`."""
        from permafrost.stages.heads.adapool_pooling import AdaPooling

        return AdaPooling(self, d_in, generator)

    def require_width(self, d_in: int) -> None:
        """See `build`."""
        head_width(self, d_in)


def head_width(config: AdaPoolHead, d_in: int) -> int:
    """Width of an attention head for tokens of width `d_in`.

    Raises:
        InputError: it would be no whole number.
    """
    if config.d_head is not None:
        return config.d_head
    if d_in % config.heads:
        raise InputError(
            f"{config.heads} attention heads do not divide the tokens' width of {d_in}, in a head of "
            "kind 'adapool'; set heads to a divisor, or the width of one with d_head"
        )
    return d_in // config.heads
