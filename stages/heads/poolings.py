"""Poolings without parameters: first token, last token, mean, maximum.

Source: the baselines of GLOT, section 4. Its released code has one pooling for both single tokens, which
takes the last one in a decoder if a setting says so; here each has a name. First and last are within the
span.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from permafrost.stages.heads.head import Head, Pooling
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


class FirstHead(Head):
    """The first token's state ([CLS] in an encoder); nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "cls_token"

    kind: Literal["first"] = "first"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        return SingleTokenPooling(d_in, "first")


class LastHead(Head):
    """The last token's state (in a decoder it has seen the whole text); nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "lasttoken"

    kind: Literal["last"] = "last"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        return SingleTokenPooling(d_in, "last")


class MeanHead(Head):
    """The mean over tokens; nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "mean_tokens"

    kind: Literal["mean"] = "mean"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        return MeanPooling(d_in)


class MaxHead(Head):
    """The maximum over tokens, per dimension; nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "max_tokens"

    kind: Literal["max"] = "max"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        return MaxPooling(d_in)
