"""From a pair head's config to its module."""

import torch
from torch import nn

from permafrost.stages.freeze.config import (
    AutoencoderSiameseHead,
    CosineMlpHead,
    PairHeadConfig,
    SiameseHead,
    UnifiedHead,
    UnifiedProjectionHead,
)
from permafrost.stages.freeze.encoders import autoencoder_encoders, siamese_encoders
from permafrost.stages.freeze.pair_heads import (
    Average,
    Concatenate,
    CosineMlp,
    LayerwiseSiamese,
    PairHead,
    SumOfProjections,
    Unified,
)
from permafrost.stages.freeze.stacked import Dropout
from permafrost.stages.heads.initialise import linear


def build_pair_head(
    config: PairHeadConfig, n_layers: int, d_model: int, generator: torch.Generator
) -> PairHead:
    """A head for latents `[n_layers, d_model]`, its weights drawn from `generator` (on the CPU)."""
    match config:
        case CosineMlpHead(hidden=hidden):
            return CosineMlp(n_layers, hidden, generator)
        case SiameseHead(d_code=d_code, hidden=hidden):
            encoders = siamese_encoders(n_layers, d_model, d_code, generator)
            mlp = nn.Sequential(
                linear(n_layers, hidden, generator),
                nn.LayerNorm(hidden),
                nn.GELU(),
                linear(hidden, 1, generator),
            )
            return LayerwiseSiamese(encoders, mlp)
        case AutoencoderSiameseHead():
            encoders = autoencoder_encoders(config.encoders, n_layers, d_model, generator)
            return LayerwiseSiamese(encoders, _deep_mlp(config, n_layers, generator))
        case UnifiedHead():
            encoders = autoencoder_encoders(config.encoders, n_layers, d_model, generator)
            return Unified(encoders, Average() if config.join == "average" else Concatenate())
        case UnifiedProjectionHead():
            encoders = autoencoder_encoders(config.encoders, n_layers, d_model, generator)
            d_codes = sum(
                n * width for n, width in zip(encoders.groups.sizes, encoders.widths, strict=True)
            )
            return Unified(encoders, SumOfProjections(d_codes, config.d_embed, generator))


def _deep_mlp(
    config: AutoencoderSiameseHead, n_layers: int, generator: torch.Generator
) -> nn.Module:
    layers: list[nn.Module] = []
    for d_in in [n_layers] + [config.hidden] * (config.n_hidden - 1):
        layers += [
            linear(d_in, config.hidden, generator),
            nn.LayerNorm(config.hidden),
            Dropout(config.dropout, generator),
            nn.GELU(),
        ]
    return nn.Sequential(*layers, linear(config.hidden, 1, generator))
