"""Heads: small modules trained on stored token states, and the poolings they are compared with."""

from permafrost.stages.heads.adapool import AdaPoolHead
from permafrost.stages.heads.glot import GlotHead
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.stages.heads.head import HEADS, Classifier, Head, HeadConfig, Pooling
from permafrost.stages.heads.mlp import MlpHead, matched_hidden
from permafrost.stages.heads.poolings import FirstHead, LastHead, MaxHead, MeanHead
from permafrost.stages.heads.pyg_pool import PygPoolHead
from permafrost.stages.heads.scorer import ScorerHead

__all__ = [
    "HEADS",
    "AdaPoolHead",
    "Classifier",
    "FirstHead",
    "GlotHead",
    "Head",
    "HeadConfig",
    "LastHead",
    "MaxHead",
    "MeanHead",
    "MlpHead",
    "Pooling",
    "PygConv",
    "PygPoolHead",
    "ScorerHead",
    "matched_hidden",
]
