"""Finding the partner among those of the batch."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.fit.losses.loss import PartnerLoss, VectorSimilarity


class Contrastive(PartnerLoss):
    """Pairs without labels: each side finds its partner among those of the batch, in both directions.

    As GLOT trains for retrieval (appendix B.3), raw dot products included. The last pair of an epoch,
    where it is alone in its batch and has no negatives, has nobody to be told from and a loss of 0.
    """

    default_of: ClassVar[tuple[TaskKind, ...]] = ("unlabelled",)
    least_batch: ClassVar[int] = 2

    kind: Literal["contrastive"] = "contrastive"
    temperature: float = Field(default=0.07, gt=0, allow_inf_nan=False)
    similarity: VectorSimilarity = "dot"
    """Also what partners are ranked by on dev and test."""
    hard_negatives: Literal["ignore", "add"] = "ignore"
    """`add`: from the first text, the partner is to be found among the hard negatives of all pairs of the
    batch as well, as in the multiple negatives ranking loss of sentence-transformers; nothing changes
    from the second text, nor on dev and test. GLOT's released code ignores the negatives of its data."""

    @property
    def compared_by(self) -> VectorSimilarity:
        """As in training."""
        return self.similarity

    @property
    def adds_negatives(self) -> bool:
        """As given."""
        return self.hard_negatives == "add"

    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        negatives: Float[Tensor, "m d"],
    ) -> Float[Tensor, ""]:
        """Cross-entropy of finding the partner, the mean of both directions."""
        candidates = torch.cat([second, negatives])
        if self.similarity == "cosine":
            first = functional.normalize(first, dim=1)
            candidates = functional.normalize(candidates, dim=1)
        logits_PC = first @ candidates.t() / self.temperature
        own = torch.arange(len(first), device=first.device)
        there = functional.cross_entropy(logits_PC, own)
        back = functional.cross_entropy(logits_PC[:, : len(first)].t(), own)
        return (there + back) / 2
