"""Heads: small trained modules on stored token states, and the poolings they are compared with."""

from stages.heads.build import Classifier, build_head, require_width
from stages.heads.config import (
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
from stages.heads.mlp import matched_hidden
from stages.heads.pooling import Pooling
from stages.heads.pyg_conv import PygConv
from stages.heads.pyg_pool import PygPoolHead

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
