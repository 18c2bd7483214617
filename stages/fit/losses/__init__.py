"""Training losses, one file each."""

from permafrost.stages.fit.losses.contrastive import Contrastive
from permafrost.stages.fit.losses.cosine_mse import CosineMse
from permafrost.stages.fit.losses.cross_entropy import CrossEntropy
from permafrost.stages.fit.losses.loss import (
    LOSSES,
    ClassLoss,
    GradedLoss,
    Loss,
    LossConfig,
    PartnerLoss,
    default_loss,
)

__all__ = [
    "LOSSES",
    "ClassLoss",
    "Contrastive",
    "CosineMse",
    "CrossEntropy",
    "GradedLoss",
    "Loss",
    "LossConfig",
    "PartnerLoss",
    "default_loss",
]
