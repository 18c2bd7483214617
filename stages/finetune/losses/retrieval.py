"""Retrieval: a query identifies its document among those of the batch (GT2VEC, equation 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from permafrost.stages.finetune.losses.loss import Reduction, VectorLoss, reduced

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class RetrievalLoss(VectorLoss):
    """Cross-entropy over cosine / temperature, from query to document only, without hard negatives.

    The paper names a temperature and gives no value.
    """

    task_kinds: ClassVar[tuple[str, ...]] = ("unlabelled",)
    default_of: ClassVar[tuple[str, ...]] = ("unlabelled",)
    least_batch: ClassVar[int] = 2

    kind: Literal["retrieval"] = "retrieval"
    temperature: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """What cosines are divided by."""
    repeated: Literal["left_out", "negative"] = "left_out"
    """What is relevant to a query by any pair of train, its own document again or another one, wherever it
    stands in the batch: it is no negative, or, as printed, it is one."""
    reduction: Reduction = "sum"
    """Over the queries of a batch."""
    branches: Literal["within", "across"] = "within"
    """Of GT2VEC, which leaves it open: `within` pairs queries and documents of the same branch, `across` the
    queries of graph and text with documents of description and text, and the other way round. Each branch's
    term is weighted as its queries are."""
    z_map: Literal["none", "linear"] = "none"
    """What is trained on the embeddings themselves: nothing, or one linear map of queries and documents, of
    both branches, without bias. It begins as the identity, so that the ranking begins as it is without."""

    @property
    def is_sum(self) -> bool:
        """As given."""
        return self.reduction == "sum"

    @property
    def pairs_across(self) -> bool:
        """As given."""
        return self.branches == "across"

    @property
    def maps_embeddings(self) -> bool:
        """As given."""
        return self.z_map == "linear"

    def of(
        self,
        queries: Float[Tensor, "p d"],
        documents: Float[Tensor, "p d"],
        relevant: Bool[Tensor, "p p"],
    ) -> Float[Tensor, ""]:
        """See `VectorLoss.of`."""
        import torch
        from torch.nn import functional

        cosines_QD = (
            functional.normalize(queries, dim=1) @ functional.normalize(documents, dim=1).t()
        )
        logits_QD = cosines_QD / self.temperature
        own = torch.arange(len(queries), device=queries.device)
        own_QD = own[:, None] == own
        if self.repeated == "left_out":
            logits_QD = logits_QD.masked_fill(relevant & ~own_QD, -torch.inf)
        terms = functional.cross_entropy(logits_QD, own, reduction="none")
        return reduced(terms, self.reduction)
