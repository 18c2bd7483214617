"""Linear: a linear probe or a linear SVM on frozen vectors, of the backbone or of a head."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.linear.config import (
        Classifier,
        ClassifierConfig,
        ClassMetric,
        LinearConfig,
        PairFeatures,
    )
    from permafrost.stages.linear.fitting import LinearResult, linear_examples, run_linear
    from permafrost.stages.linear.model import LinearModel, load_linear, pair_inputs
    from permafrost.stages.linear.on_head import OnHeadConfig, Weights, drawn_head, run_on_head

__getattr__ = late_names(__name__)

__all__ = [
    "ClassMetric",
    "Classifier",
    "ClassifierConfig",
    "LinearConfig",
    "LinearModel",
    "LinearResult",
    "OnHeadConfig",
    "PairFeatures",
    "Weights",
    "drawn_head",
    "linear_examples",
    "load_linear",
    "pair_inputs",
    "run_linear",
    "run_on_head",
]
