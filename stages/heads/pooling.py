"""What every head is: tokens of several texts in, one vector per text out."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn


class Pooling(nn.Module, ABC):
    """Turns ragged tokens into one vector per text.

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
        """Share of each token in its text's vector, 1 in sum per text; None where there is none."""
        return None

    @property
    def n_parameters(self) -> int:
        """Trainable numbers."""
        return sum(parameter.numel() for parameter in self.parameters())
