"""What is minimised, told apart by `kind`: one loss per kind of task.

Axes: b pairs of a batch, m hard negatives of all of them together, d width of a vector.
"""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from permafrost.stages.corpus.columns import TaskKind

VectorSimilarity = Literal["dot", "cosine"]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CrossEntropy(_Config):
    """Classes of single texts or of pairs."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class CosineMse(_Config):
    """Graded pairs: the squared distance of the cosine to the label, scaled to between 0 and 1.

    GLOT divides STS-B's labels by 5; here the lowest label of train becomes 0 and the highest 1.
    """

    kind: Literal["cosine_mse"] = "cosine_mse"


class Contrastive(_Config):
    """Pairs without labels: each side finds its partner among those of the batch, in both directions.

    As GLOT trains for retrieval (appendix B.3), raw dot products included. The last pair of an epoch,
    where it is alone in its batch and has no negatives, has nobody to be told from and a loss of 0.
    """

    kind: Literal["contrastive"] = "contrastive"
    temperature: float = Field(default=0.07, gt=0, allow_inf_nan=False)
    similarity: VectorSimilarity = "dot"
    """Also what partners are ranked by on dev and test."""
    hard_negatives: Literal["ignore", "add"] = "ignore"
    """`add`: from the first text, the partner is to be found among the hard negatives of all pairs of the
    batch as well, as in the multiple negatives ranking loss of sentence-transformers; nothing changes
    from the second text, nor on dev and test. GLOT's released code ignores the negatives of its data."""


LossConfig = Annotated[CrossEntropy | CosineMse | Contrastive, Field(discriminator="kind")]

LOSS_OF: dict[TaskKind, str] = {
    "classification": "cross_entropy",
    "pair_classification": "cross_entropy",
    "similarity": "cosine_mse",
    "unlabelled": "contrastive",
}
"""Kind of task to the kind of its loss."""


def cosine_mse(
    first: Float[Tensor, "b d"], second: Float[Tensor, "b d"], wanted: Float[Tensor, " b"]
) -> Float[Tensor, ""]:
    """Mean squared difference of the cosines of pairs and what they should be."""
    return functional.mse_loss(functional.cosine_similarity(first, second, dim=1), wanted)


def contrastive(
    first: Float[Tensor, "b d"],
    second: Float[Tensor, "b d"],
    config: Contrastive,
    negatives: Float[Tensor, "m d"] | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of finding the partner among the batch's, the mean of both directions."""
    found = second if negatives is None else torch.cat([second, negatives])
    if config.similarity == "cosine":
        first, found = functional.normalize(first, dim=1), functional.normalize(found, dim=1)
    logits_BC = first @ found.t() / config.temperature
    own = torch.arange(len(first), device=first.device)
    there = functional.cross_entropy(logits_BC, own)
    back = functional.cross_entropy(logits_BC[:, : len(first)].t(), own)
    return (there + back) / 2
