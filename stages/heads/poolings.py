"""Poolings without parameters: first token, last token, mean, maximum.

Source: the baselines of GLOT, section 4. Its released code has one pooling for both single tokens, the
last one in a decoder if a setting says so; here each has its name. Both are tokens of those given, so of
the span.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stages.heads.pooling import Pooling
from stages.heads.ragged_sums import owners, weighted_sum


class FirstPooling(Pooling):
    """The first token of each text."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return tokens[offsets[:-1]]

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """1 for the first token of each text, 0 for the others."""
        return tokens.new_zeros(len(tokens)).index_fill_(0, offsets[:-1], 1.0)


class LastPooling(Pooling):
    """The last token of each text."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return tokens[offsets[1:] - 1]

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """1 for the last token of each text, 0 for the others."""
        return tokens.new_zeros(len(tokens)).index_fill_(0, offsets[1:] - 1, 1.0)


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
    """The largest value per dimension over each text's tokens."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return torch.segment_reduce(tokens, "max", offsets=offsets, axis=0)
