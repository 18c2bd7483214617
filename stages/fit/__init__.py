"""Fit: train heads on stored features, chosen on dev."""

from stages.fit.batches import per_text, to_tensors
from stages.fit.config import FitConfig
from stages.fit.data import Examples, FitData
from stages.fit.history import EpochRecord, StepRecord
from stages.fit.losses import Contrastive, CosineMse, CrossEntropy, LossConfig
from stages.fit.metrics import METRICS, Metric, class_balance, evaluate, majority_rate
from stages.fit.models import Predictions, TaskFacts
from stages.fit.optim import OptimConfig
from stages.fit.run import predict
from stages.fit.sources import source_of
from stages.fit.splits import require_rivals, require_spread, require_trainable
from stages.fit.trained import FitResult, LoadedHead, load_head
from stages.fit.training import fit

__all__ = [
    "METRICS",
    "Contrastive",
    "CosineMse",
    "CrossEntropy",
    "EpochRecord",
    "Examples",
    "FitConfig",
    "FitData",
    "FitResult",
    "LoadedHead",
    "LossConfig",
    "Metric",
    "OptimConfig",
    "Predictions",
    "StepRecord",
    "TaskFacts",
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
