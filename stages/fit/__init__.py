"""Fit: train heads on stored features, chosen on dev."""

from stages.fit.batches import per_text, to_tensors
from stages.fit.config import FitConfig, OptimConfig
from stages.fit.data import FitData, Labelled
from stages.fit.metrics import Metric, evaluate, majority_rate
from stages.fit.trained import EpochRecord, FitResult, LoadedHead, load_head
from stages.fit.training import fit

__all__ = [
    "EpochRecord",
    "FitConfig",
    "FitData",
    "FitResult",
    "Labelled",
    "LoadedHead",
    "Metric",
    "OptimConfig",
    "evaluate",
    "fit",
    "load_head",
    "majority_rate",
    "per_text",
    "to_tensors",
]
