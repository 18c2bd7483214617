"""The base classes of heads: configs that build a pooling, which maps the tokens of a text to one vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

from permafrost.stages.kinds import Category, Kind
from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.pooling import Pooling as Pooling

__getattr__ = late_names(__name__)


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
        from permafrost.stages.heads.pooling import OneToken

        return OneToken(d_in)
