"""Cross-entropy of classes."""

from typing import ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.fit.losses.loss import ClassLoss


class CrossEntropy(ClassLoss):
    """Classes of single texts or of pairs."""

    default_of: ClassVar[tuple[TaskKind, ...]] = ("classification", "pair_classification")

    kind: Literal["cross_entropy"] = "cross_entropy"

    def of(self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """Mean over the examples."""
        return functional.cross_entropy(logits, labels)
