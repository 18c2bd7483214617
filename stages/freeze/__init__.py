"""FREEZE!: similarity of two texts from the pooled latents of every layer of a frozen backbone."""

from permafrost.stages.freeze.build import build_pair_head
from permafrost.stages.freeze.config import (
    AutoencoderConfig,
    AutoencoderSiameseHead,
    CosineMlpHead,
    EncoderSizes,
    PairFitConfig,
    PairHeadConfig,
    SiameseHead,
    UnifiedHead,
    UnifiedProjectionHead,
)
from permafrost.stages.freeze.corpus import (
    fit_corpus,
    graded_pairs,
    require_encoders,
    require_pairs,
    score_corpus,
)
from permafrost.stages.freeze.encoders import LayerAutoencoders
from permafrost.stages.freeze.fit_pairs import fit_pairs, predict
from permafrost.stages.freeze.latents import read_latents
from permafrost.stages.freeze.losses import log_variance, mse
from permafrost.stages.freeze.pair_fit import GradedPairs, PairEpoch, PairFitResult, load_pair_fit
from permafrost.stages.freeze.pair_heads import EncodedHead, PairHead, Unified
from permafrost.stages.freeze.pretrain import pretrain, require_texts
from permafrost.stages.freeze.pretrained import AutoencoderResult, LayerEpoch, load_autoencoders

__all__ = [
    "AutoencoderConfig",
    "AutoencoderResult",
    "AutoencoderSiameseHead",
    "CosineMlpHead",
    "EncodedHead",
    "EncoderSizes",
    "GradedPairs",
    "LayerAutoencoders",
    "LayerEpoch",
    "PairEpoch",
    "PairFitConfig",
    "PairFitResult",
    "PairHead",
    "PairHeadConfig",
    "SiameseHead",
    "Unified",
    "UnifiedHead",
    "UnifiedProjectionHead",
    "build_pair_head",
    "fit_corpus",
    "fit_pairs",
    "graded_pairs",
    "load_autoencoders",
    "load_pair_fit",
    "log_variance",
    "mse",
    "predict",
    "pretrain",
    "read_latents",
    "require_encoders",
    "require_pairs",
    "require_texts",
    "score_corpus",
]
