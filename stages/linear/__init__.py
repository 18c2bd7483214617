"""Linear: a linear probe or a linear SVM on frozen vectors."""

from stages.linear.config import Classifier, ClassMetric, LinearConfig, PairFeatures
from stages.linear.features import pair_inputs
from stages.linear.fitting import LinearResult, linear_examples, run_linear
from stages.linear.model import LinearModel, load_linear

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
