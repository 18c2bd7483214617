"""Heads: small modules trained on stored token states, and the poolings they are compared with."""

from permafrost.stages.heads.adapool import AdaPoolHead
from permafrost.stages.heads.glot import GlotHead
from permafrost.stages.heads.head import HEADS, Head, HeadConfig
from permafrost.stages.heads.mlp import MlpHead, matched_hidden
from permafrost.stages.heads.poolings import FirstHead, LastHead, MaxHead, MeanHead
from permafrost.stages.heads.scorer import ScorerHead

__all__ = [
    "HEADS",
    "AdaPoolHead",
    "FirstHead",
    "GlotHead",
    "Head",
    "HeadConfig",
    "LastHead",
    "MaxHead",
    "MeanHead",
    "MlpHead",
    "ScorerHead",
    "matched_hidden",
]
