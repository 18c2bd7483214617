"""The config of a fit: a head, the array it reads, and its training."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS
from permafrost.stages.fit.grid import flat
from permafrost.stages.fit.losses.loss import LossConfig, default_loss
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.fit.optim import OptimConfig
from permafrost.stages.heads.head import HeadConfig


class FitConfig(BaseModel):
    """One head on one stored array."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head: HeadConfig
    layer: str = "hidden/6"
    """The stored array that the head reads."""
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = Field(default_factory=lambda: default_loss("classification"))
    """Depends on the kind of the corpus: `cross_entropy` for classes, `cosine_mse` for graded pairs,
    `contrastive`, which has to be given, for pairs without labels."""
    seed: int = Field(ge=0, le=MAX_SEED)
    """Seeds the initial weights, the order of the batches, and the permutation of `labels="shuffled"`."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` is a control: the labels of train and dev are permuted (for pairs without labels, the
    second texts with their negatives), test is untouched."""
    metric: Metric = "accuracy"
    """Compared on dev and reported. `f1` is that of class 1 of two, `spearman_pearson` the mean of both
    correlations (as in GLOT), `mrr` the mean reciprocal rank of a pair's partner."""
    grid_patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """A candidate of a grid is stopped after this many epochs if none of them beats, on dev, every epoch of
    the candidates before it; None for never. May miss a candidate that is slow to start."""

    def choice(self) -> dict[str, JsonValue]:
        """Layer and settings of head, training and loss by dotted name, for tables."""
        plain = self.model_dump(mode="json", include={"head", "optim", "loss"})
        return {"layer": self.layer} | dict(flat(plain))
