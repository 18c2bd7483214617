"""FREEZE!: similarity of two texts from the pooled latents of every layer of a frozen backbone."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.freeze.autoencoder_siamese import AutoencoderSiameseHead
    from permafrost.stages.freeze.config import AutoencoderConfig, PairFitConfig, Scale
    from permafrost.stages.freeze.corpus import fit_corpus, score_corpus
    from permafrost.stages.freeze.cosine_mlp import CosineMlpHead
    from permafrost.stages.freeze.encoder_sizes import EncoderSizes
    from permafrost.stages.freeze.encoders import LayerAutoencoders
    from permafrost.stages.freeze.fit_pairs import predict
    from permafrost.stages.freeze.graded import GradedPairs, graded_pairs, require_pairs
    from permafrost.stages.freeze.latents import read_latents
    from permafrost.stages.freeze.layers_head import (
        LAYERS_HEADS,
        LayersHead,
        PairHeadConfig,
        heads_with_vectors,
    )
    from permafrost.stages.freeze.losses import (
        L1,
        PAIR_LOSSES,
        LogVariance,
        Mse,
        PairLoss,
        PairLossConfig,
        Variance,
    )
    from permafrost.stages.freeze.pair_fit import PairEpoch, PairFitResult, load_pair_fit
    from permafrost.stages.freeze.pair_heads import EncodedHead, PairHead, Unified
    from permafrost.stages.freeze.pretrain import require_texts
    from permafrost.stages.freeze.pretrained import AutoencoderResult, LayerEpoch, load_autoencoders
    from permafrost.stages.freeze.pretrained_layers import places_of, require_encoders
    from permafrost.stages.freeze.siamese import SiameseHead
    from permafrost.stages.freeze.unified import UnifiedHead
    from permafrost.stages.freeze.unified_projection import UnifiedProjectionHead

__getattr__ = late_names(__name__)

__all__ = [
    "L1",
    "LAYERS_HEADS",
    "PAIR_LOSSES",
    "AutoencoderConfig",
    "AutoencoderResult",
    "AutoencoderSiameseHead",
    "CosineMlpHead",
    "EncodedHead",
    "EncoderSizes",
    "GradedPairs",
    "LayerAutoencoders",
    "LayerEpoch",
    "LayersHead",
    "LogVariance",
    "Mse",
    "PairEpoch",
    "PairFitConfig",
    "PairFitResult",
    "PairHead",
    "PairHeadConfig",
    "PairLoss",
    "PairLossConfig",
    "Scale",
    "SiameseHead",
    "Unified",
    "UnifiedHead",
    "UnifiedProjectionHead",
    "Variance",
    "fit_corpus",
    "graded_pairs",
    "heads_with_vectors",
    "load_autoencoders",
    "load_pair_fit",
    "places_of",
    "predict",
    "read_latents",
    "require_encoders",
    "require_pairs",
    "require_texts",
    "score_corpus",
]
