"""Fit: train heads on stored features, chosen on dev."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.fit.candidates import Grid
    from permafrost.stages.fit.choice import Choice, bar_after, choose
    from permafrost.stages.fit.config import FitConfig
    from permafrost.stages.fit.data import Examples, FitData
    from permafrost.stages.fit.history import EpochRecord, StepRecord
    from permafrost.stages.fit.losses import (
        LOSSES,
        Contrastive,
        CosineMse,
        CrossEntropy,
        Loss,
        LossConfig,
    )
    from permafrost.stages.fit.metrics import (
        METRICS,
        Metric,
        class_balance,
        evaluate,
        majority_rate,
    )
    from permafrost.stages.fit.models import TaskFacts
    from permafrost.stages.fit.optim import OptimConfig
    from permafrost.stages.fit.predictions import Predictions
    from permafrost.stages.fit.run import predict
    from permafrost.stages.fit.sources import per_text, source_of, to_tensors
    from permafrost.stages.fit.splits import require_rivals, require_spread, require_trainable
    from permafrost.stages.fit.trained import FitResult, LoadedHead, load_head
    from permafrost.stages.fit.training import fit

__getattr__ = late_names(__name__)

__all__ = [
    "LOSSES",
    "METRICS",
    "Choice",
    "Contrastive",
    "CosineMse",
    "CrossEntropy",
    "EpochRecord",
    "Examples",
    "FitConfig",
    "FitData",
    "FitResult",
    "Grid",
    "LoadedHead",
    "Loss",
    "LossConfig",
    "Metric",
    "OptimConfig",
    "Predictions",
    "StepRecord",
    "TaskFacts",
    "bar_after",
    "choose",
    "class_balance",
    "evaluate",
    "fit",
    "load_head",
    "majority_rate",
    "per_text",
    "predict",
    "require_rivals",
    "require_spread",
    "require_trainable",
    "source_of",
    "to_tensors",
]
