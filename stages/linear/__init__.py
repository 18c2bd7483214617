"""Linear: a linear probe or a linear SVM on frozen vectors."""

from permafrost.stages.linear.config import Classifier, ClassMetric, LinearConfig, PairFeatures
from permafrost.stages.linear.fitting import LinearResult, linear_examples, run_linear
from permafrost.stages.linear.model import LinearModel, load_linear, pair_inputs

__all__ = [
    "ClassMetric",
    "Classifier",
    "LinearConfig",
    "LinearModel",
    "LinearResult",
    "PairFeatures",
    "linear_examples",
    "load_linear",
    "pair_inputs",
    "run_linear",
]
