"""What every head is: a config that makes a pooling, which turns the tokens of a text into one vector."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.initialise import linear
from permafrost.stages.kinds import Category, Kind


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


class Head(Kind, ABC):
    """One entry `head` of an experiment: a kind of pooling with its settings."""

    trains: ClassVar[bool] = True
    """Whether it may have parameters; without, each text is pooled once for all epochs."""
    sentence_transformers_mode: ClassVar[str | None] = None
    """What that library calls the same pooling, if it has it."""

    @abstractmethod
    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """The pooling for tokens `d_in` wide, its weights drawn from `generator` (on the CPU).

        Raises:
            InputError: the settings do not go with this width.
        """

    def require_width(self, d_in: int) -> None:
        """Check that the head goes with tokens `d_in` wide, where that depends on its settings.

        Raises:
            InputError: as `build`.
        """
        return


HEADS = Category("head", Head, "permafrost.stages.heads")
HeadConfig = Annotated[Head, HEADS.field()]
"""Any head, by its `kind`."""


class AlreadyPooled(Head):
    """Texts of one token each, which is their vector. No kind of its own: it stands for what was pooled."""

    trains: ClassVar[bool] = False

    kind: str = "already_pooled"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """Hands the tokens on."""
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
