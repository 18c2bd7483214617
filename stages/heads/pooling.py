"""The base class of what a head builds: a module that maps the tokens of a text to one vector."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.initialise import linear


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
