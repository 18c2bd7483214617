"""InfoNCE with in-batch negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.fit.losses.loss import PartnerLoss, VectorSimilarity

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Contrastive(PartnerLoss):
    """Pairs without labels: each side identifies its partner among those of the batch, in both directions.

    As in GLOT's training for retrieval (appendix B.3), raw dot products included. If the last pair of an
    epoch is alone in its batch and has no negatives, there is nothing to tell it from and its loss is 0.
    """

    default_of: ClassVar[tuple[TaskKind, ...]] = ("unlabelled",)
    least_batch: ClassVar[int] = 2

    kind: Literal["contrastive"] = "contrastive"
    temperature: float = Field(default=0.07, gt=0, allow_inf_nan=False)
    """What similarities are divided by."""
    similarity: VectorSimilarity = "dot"
    """Also ranks the partners on dev and test."""
    hard_negatives: Literal["ignore", "add"] = "ignore"
    """`add`: seen from the first text, the hard negatives of all pairs of the batch are candidates too, as
    in sentence-transformers' MultipleNegativesRankingLoss; nothing changes for the other direction, nor on
    dev and test. GLOT's released code ignores the negatives of its data."""

    @property
    def compared_by(self) -> VectorSimilarity:
        """The same as in training."""
        return self.similarity

    @property
    def adds_negatives(self) -> bool:
        """Whether `hard_negatives` is `add`."""
        return self.hard_negatives == "add"

    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        negatives: Float[Tensor, "m d"],
    ) -> Float[Tensor, ""]:
        """Cross-entropy of identifying the partner, averaged over both directions."""
        import torch
        from torch.nn import functional

        candidates = torch.cat([second, negatives])
        if self.similarity == "cosine":
            first = functional.normalize(first, dim=1)
            candidates = functional.normalize(candidates, dim=1)
        logits_PC = first @ candidates.t() / self.temperature
        own = torch.arange(len(first), device=first.device)
        there = functional.cross_entropy(logits_PC, own)
        back = functional.cross_entropy(logits_PC[:, : len(first)].t(), own)
        return (there + back) / 2
