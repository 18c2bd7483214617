"""InfoNCE between the two embeddings of the same item.

Source: GT2VEC, equation 5: both of unit length, no temperature, one direction (anchors are the embeddings of
graph and text), summed over the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.finetune.losses.loss import Alignment, Reduction, reduced

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class InfoNceAlignment(Alignment):
    """Each anchor identifies the key of its own item among those of the batch.

    Without a temperature it cannot reach 0: cosines lie between -1 and 1, so that the mean over n items is
    at least ln(1 + (n - 1) exp(-n / (n - 1))); it is ln n if all embeddings are equal.
    """

    kind: Literal["info_nce"] = "info_nce"
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """1, as printed, is none."""
    directions: Literal["one", "both"] = "one"
    """`both`: the mean of this and of the same with anchors and keys exchanged."""
    reduction: Reduction = "sum"
    """Over the items of a batch."""

    def of(self, anchors: Float[Tensor, "n d"], keys: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
        """See `Alignment.of`."""
        import torch
        from torch.nn import functional

        cosines_AK = functional.normalize(anchors, dim=1) @ functional.normalize(keys, dim=1).t()
        logits_AK = cosines_AK / self.temperature
        own = torch.arange(len(anchors), device=anchors.device)
        terms = functional.cross_entropy(logits_AK, own, reduction="none")
        if self.directions == "both":
            terms = (terms + functional.cross_entropy(logits_AK.t(), own, reduction="none")) / 2
        return reduced(terms, self.reduction)
