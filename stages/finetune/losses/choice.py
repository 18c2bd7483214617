"""Cross-entropy over the choices of a question (GT2VEC, equation 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from permafrost.stages.finetune.losses.loss import Reduction, ScoreLoss, reduced

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class ChoiceLoss(ScoreLoss):
    """A softmax over the scores of a question's choices, of which one is right.

    Questions may have different numbers of choices.
    """

    task_kinds: ClassVar[tuple[str, ...]] = ("multiple_choice",)
    default_of: ClassVar[tuple[str, ...]] = ("multiple_choice",)

    kind: Literal["choice"] = "choice"
    reduction: Reduction = "sum"
    """Over the questions of a batch."""

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
        """The loss of a batch; a label is the number of the right choice among those of its question."""
        import torch

        from permafrost.stages.heads.ragged_sums import owners

        assert bool((offsets.diff() > labels).all()), (
            "a label lies beyond the choices of its question"
        )
        owner = owners(offsets, len(scores))
        highest = torch.segment_reduce(scores.detach(), "max", offsets=offsets)
        shares = (scores - highest[owner]).exp()
        totals = shares.new_zeros(len(labels)).index_add(0, owner, shares)
        terms = totals.log() + highest - scores[offsets[:-1] + labels]
        return reduced(terms, self.reduction)
