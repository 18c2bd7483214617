"""Training losses, one file each."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
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

__getattr__ = late_names(__name__)

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
