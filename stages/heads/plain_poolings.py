"""Modules of the poolings without parameters: one token, the mean, the maximum."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.ragged_sums import owners, weighted_sum


class SingleTokenPooling(Pooling):
    """One token of each text: the first or the last."""

    def __init__(self, d_in: int, position: Literal["first", "last"]) -> None:
        super().__init__()
        self.d_out = d_in
        self._position: Literal["first", "last"] = position

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return tokens[self._rows(offsets)]

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """1 for the chosen token of each text, 0 for the others."""
        return tokens.new_zeros(len(tokens)).index_fill_(0, self._rows(offsets), 1.0)

    def _rows(self, offsets: Int[Tensor, " n_plus_1"]) -> Int[Tensor, " n"]:
        return offsets[:-1] if self._position == "first" else offsets[1:] - 1


class MeanPooling(Pooling):
    """The mean of each text's tokens."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return weighted_sum(tokens, self.token_weights(tokens, offsets), offsets)

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """1 / n for each of a text's n tokens."""
        shares = offsets.diff().to(tokens.dtype).reciprocal()
        return shares[owners(offsets, len(tokens))]


class MaxPooling(Pooling):
    """The maximum per dimension over each text's tokens."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return torch.segment_reduce(tokens, "max", offsets=offsets, axis=0)
