"""Dense layouts of ragged texts: blocks of texts of similar length, padded to the longest.

Axes: t tokens of all texts, b texts of a block, l length of a block's longest text.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the b * l slots of a block are in the packed tokens.

    Padding slots read their text's last token, so that they hold finite numbers of the right scale.
    """

    texts: Int[Tensor, " b"]
    source: Int[Tensor, " slots"]
    """Row of the packed tokens that each slot reads."""
    padding: Bool[Tensor, "b l"] | None
    """Which slots are padding; None if all texts of the block have the same length."""

    @property
    def shape(self) -> tuple[int, int]:
        """b and l."""
        return len(self.texts), len(self.source) // len(self.texts)

    def target(self, n_tokens: int) -> Int[Tensor, " slots"]:
        """The row that each slot writes to: the one it reads, or one past the last for padding."""
        if self.padding is None:
            return self.source
        return self.source.masked_fill(self.padding.flatten(), n_tokens)


def plan(lengths: NDArray[np.int64], pairs: int) -> Iterator[NDArray[np.int64]]:
    """The texts of each block, longest first, such that padding at most doubles the pairs of long texts.

    Args:
        lengths: tokens of each text.
        pairs: bound on b * l * l, unless a single text is larger.
    """
    order = np.argsort(-lengths, kind="stable")
    falling = -lengths[order]
    at = 0
    while at < len(order):
        longest = -int(falling[at])
        # Short texts share a block whatever their ratio, as there a block costs more than its padding.
        shortest = min(longest * 3 // 4, longest - 16)
        alike = int(np.searchsorted(falling, -shortest, side="right"))
        stop = min(alike, at + max(1, pairs // longest**2))
        yield order[at:stop]
        at = stop


def lay_out(offsets: Int[Tensor, " n_plus_1"], pairs: int, multiple: int = 1) -> Iterator[Layout]:
    """Assign every text to a block; a block of length l has at most `max(pairs, l * l)` token pairs.

    The length of a block is that of its longest text, rounded up to a multiple of `multiple`.
    """
    lengths = offsets.diff().cpu().numpy()
    padded = lengths + -lengths % multiple
    for texts in plan(padded, pairs):
        longest, shortest = int(padded[texts[0]]), int(lengths[texts].min())
        picked = torch.from_numpy(texts).to(offsets.device)
        starts, ends = offsets[:-1][picked, None], offsets[1:][picked, None]
        slots = starts + torch.arange(longest, device=offsets.device)
        padding = slots >= ends if shortest < longest else None
        yield Layout(picked, torch.minimum(slots, ends - 1).flatten(), padding)
