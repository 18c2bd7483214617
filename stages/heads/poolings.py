"""Poolings without parameters: first token, last token, mean, maximum.

Source: the baselines of GLOT, section 4. Its released code has one pooling for both single tokens, which
takes the last one in a decoder if a setting says so; here each has a name. First and last are within the
span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from permafrost.stages.heads.head import Head
from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.plain_poolings import MaxPooling as MaxPooling
    from permafrost.stages.heads.plain_poolings import MeanPooling as MeanPooling
    from permafrost.stages.heads.pooling import Pooling

__getattr__ = late_names(__name__)


class FirstHead(Head):
    """The first token's state ([CLS] in an encoder); nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "cls_token"

    kind: Literal["first"] = "first"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        from permafrost.stages.heads.plain_poolings import SingleTokenPooling

        return SingleTokenPooling(d_in, "first")


class LastHead(Head):
    """The last token's state (in a decoder it has seen the whole text); nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "lasttoken"

    kind: Literal["last"] = "last"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        from permafrost.stages.heads.plain_poolings import SingleTokenPooling

        return SingleTokenPooling(d_in, "last")


class MeanHead(Head):
    """The mean over tokens; nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "mean_tokens"

    kind: Literal["mean"] = "mean"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        from permafrost.stages.heads.plain_poolings import MeanPooling

        return MeanPooling(d_in)


class MaxHead(Head):
    """The maximum over tokens, per dimension; nothing to train."""

    trains: ClassVar[bool] = False
    sentence_transformers_mode: ClassVar[str | None] = "max_tokens"

    kind: Literal["max"] = "max"

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See the class; draws nothing."""
        from permafrost.stages.heads.plain_poolings import MaxPooling

        return MaxPooling(d_in)
