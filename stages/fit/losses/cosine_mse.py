"""Squared error between cosines and grades."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.fit.losses.loss import GradedLoss

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class CosineMse(GradedLoss):
    """Graded pairs: the squared error between the cosine and the label, which is scaled to 0..1.

    GLOT divides STS-B's labels by 5; here the lowest label in train becomes 0 and the highest 1.
    """

    default_of: ClassVar[tuple[TaskKind, ...]] = ("similarity",)

    kind: Literal["cosine_mse"] = "cosine_mse"

    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        wanted: Float[Tensor, " p"],
    ) -> Float[Tensor, ""]:
        """Mean over the pairs."""
        from torch.nn import functional

        return functional.mse_loss(functional.cosine_similarity(first, second, dim=1), wanted)
