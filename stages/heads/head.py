"""The base classes of heads: configs that build a pooling, which maps the tokens of a text to one vector."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.initialise import linear
from permafrost.stages.kinds import Category, Kind


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


class Head(Kind, ABC):
    """The field `head` of an experiment: a kind of pooling with its settings."""

    trains: ClassVar[bool] = True
    """Whether it may have parameters; if not, each text is pooled once for all epochs."""
    sentence_transformers_mode: ClassVar[str | None] = None
    """Name of the same pooling in sentence-transformers, if it has it."""

    @abstractmethod
    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """Build the pooling for tokens of width `d_in`, with weights drawn from `generator` (on the CPU).

        Raises:
            InputError: the settings do not fit this width.
        """

    def require_width(self, d_in: int) -> None:
        """Check that the settings fit tokens of width `d_in`, if that depends on them.

        Raises:
            InputError: as `build`.
        """
        return


HEADS = Category("head", Head, "permafrost.stages.heads")
HeadConfig = Annotated[Head, HEADS.field()]
"""Any head, by its `kind`."""


class AlreadyPooled(Head):
    """For texts that are pooled already: their only token is their vector. Not a kind that users can name."""

    trains: ClassVar[bool] = False

    kind: str = "already_pooled"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """A pooling that returns the tokens unchanged."""
        return _OneToken(d_in)


class _OneToken(Pooling):
    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.d_out = d_in

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        return tokens


class Classifier(nn.Module):
    """Linear(d_in, n_classes) on a pooled vector, as in GLOT's single-sentence tasks."""

    def __init__(self, d_in: int, n_classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d_in, n_classes, generator)

    def forward(self, vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Logits."""
        return self.linear(vectors)
