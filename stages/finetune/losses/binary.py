"""Binary cross-entropy of pairs of a graph and a text (GT2VEC, equation 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from permafrost.stages.finetune.losses.loss import Reduction, ScoreLoss, reduced

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class BinaryLoss(ScoreLoss):
    """Whether graph and text belong together: the sigmoid of the score of the case's only item."""

    task_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    default_of: ClassVar[tuple[str, ...]] = ("classification",)
    n_classes: ClassVar[int | None] = 2

    kind: Literal["binary"] = "binary"
    reduction: Reduction = "sum"
    """Over the cases of a batch."""

    @property
    def is_sum(self) -> bool:
        """As given."""
        return self.reduction == "sum"

    def of(
        self,
        scores: Float[Tensor, " i"],
        offsets: Int[Tensor, " c_plus_1"],
        labels: Int[Tensor, " c"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; labels are 0 and 1, and a case has one item."""
        from torch.nn import functional

        assert len(scores) == len(labels), "a case of a binary task has one item"
        wanted = labels.to(scores.dtype)
        terms = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
        return reduced(terms, self.reduction)
