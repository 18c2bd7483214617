"""Cross-entropy of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.fit.losses.loss import ClassLoss

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class CrossEntropy(ClassLoss):
    """Classes of single texts or of pairs."""

    default_of: ClassVar[tuple[TaskKind, ...]] = ("classification", "pair_classification")

    kind: Literal["cross_entropy"] = "cross_entropy"

    def of(self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """Mean over the examples."""
        from torch.nn import functional

        return functional.cross_entropy(logits, labels)
