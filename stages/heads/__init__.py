"""Heads: small trained modules on stored token states, and the poolings they are compared with."""

from stages.heads.build import Classifier, build_head
from stages.heads.config import (
    FirstHead,
    GlotHead,
    HeadConfig,
    MaxHead,
    MeanHead,
    ScorerHead,
)
from stages.heads.pooling import Pooling

__all__ = [
    "Classifier",
    "FirstHead",
    "GlotHead",
    "HeadConfig",
    "MaxHead",
    "MeanHead",
    "Pooling",
    "ScorerHead",
    "build_head",
]
