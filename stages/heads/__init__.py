"""Heads: small trained modules on stored token states, and the poolings they are compared with."""

from permafrost.stages.heads.build import Classifier, build_head, require_width
from permafrost.stages.heads.config import (
    AdaPoolHead,
    FirstHead,
    GlotHead,
    HeadConfig,
    LastHead,
    MaxHead,
    MeanHead,
    MlpHead,
    ScorerHead,
)
from permafrost.stages.heads.mlp import matched_hidden
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.pyg_conv import PygConv
from permafrost.stages.heads.pyg_pool import PygPoolHead

__all__ = [
    "AdaPoolHead",
    "Classifier",
    "FirstHead",
    "GlotHead",
    "HeadConfig",
    "LastHead",
    "MaxHead",
    "MeanHead",
    "MlpHead",
    "Pooling",
    "PygConv",
    "PygPoolHead",
    "ScorerHead",
    "build_head",
    "matched_hidden",
    "require_width",
]
