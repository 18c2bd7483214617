"""The base class of what a head builds: a module that maps the tokens of a text to one vector."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.head import Head
from permafrost.stages.heads.initialise import linear
from permafrost.storage.errors import InputError


class Pooling(nn.Module, ABC):
    """Maps ragged tokens to one vector per text.

    Texts are packed end to end: `tokens` is `[n_tokens, d_model]`, text i is
    `tokens[offsets[i]:offsets[i + 1]]`, and every text has at least one token.
    """

    d_out: int
    """Width of a pooled vector."""

    @abstractmethod
    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"] | None:
        """Share of each token in its text's vector, summing to 1 per text; None without token weights."""
        return None

    @property
    def n_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


def build_pooling(head: Head, d_in: int, generator: torch.Generator) -> Pooling:
    """What a head builds for tokens of width `d_in`.

    Raises:
        InputError: the settings do not fit this width; or it built no pooling, as a plug-in's may.
    """
    pooling: object = head.build(d_in, generator)
    if not isinstance(pooling, Pooling):
        raise InputError(
            f"{type(head).__name__}.build gave {type(pooling).__name__}, which is no Pooling; return one "
            "(permafrost.stages.heads.head.Pooling)"
        )
    if not hasattr(pooling, "d_out"):
        raise InputError(
            f"{type(pooling).__name__} has no d_out; set it to the width of its vectors where it is made"
        )
    return pooling


def pool(
    pooling: Pooling, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
) -> Float[Tensor, "n d_out"]:
    """The vectors that a pooling gives.

    Raises:
        InputError: they have another shape than the pooling says, as a plug-in's may, or are no tensor.
    """
    vectors: object = pooling(tokens, offsets)
    expected = (len(offsets) - 1, pooling.d_out)
    if not isinstance(vectors, Tensor) or vectors.shape != expected:
        gave = (
            f"vectors of shape {list(vectors.shape)}"
            if isinstance(vectors, Tensor)
            else f"{type(vectors).__name__} instead of a tensor"
        )
        raise InputError(
            f"{type(pooling).__name__} gave {gave} for {expected[0]} texts, and its d_out is {expected[1]}; "
            f"return one vector per text, [{expected[0]}, {expected[1]}], or set d_out to their width"
        )
    return vectors


class OneToken(Pooling):
    """For texts that are pooled already: returns the tokens unchanged."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """The tokens, one per text."""
        return tokens


class Classifier(nn.Module):
    """Linear(d_in, n_classes) on a pooled vector, as in GLOT's single-sentence tasks."""

    def __init__(self, d_in: int, n_classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d_in, n_classes, generator)

    def forward(self, vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Logits."""
        return self.linear(vectors)
