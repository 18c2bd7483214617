"""From a head's config to its module."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.heads.adapool import AdaPooling
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
from permafrost.stages.heads.glot import GlotPooling
from permafrost.stages.heads.initialise import linear
from permafrost.stages.heads.mlp import MlpPooling
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.poolings import MaxPooling, MeanPooling, SingleTokenPooling
from permafrost.stages.heads.pyg_conv import PygConv
from permafrost.stages.heads.pyg_pool import PygPoolHead, PygPooling
from permafrost.stages.heads.scorer import ScorerPooling


def build_head(config: HeadConfig, d_in: int, generator: torch.Generator) -> Pooling:
    """A head for tokens `d_in` wide, its weights drawn from `generator` (on the CPU).

    Raises:
        InputError: the attention heads of an AdaPool do not divide `d_in`, or a class of torch-geometric does
            not go with it.
    """
    match config:
        case FirstHead():
            return SingleTokenPooling(d_in, "first")
        case LastHead():
            return SingleTokenPooling(d_in, "last")
        case MeanHead():
            return MeanPooling(d_in)
        case MaxHead():
            return MaxPooling(d_in)
        case ScorerHead(hidden=hidden):
            return ScorerPooling(d_in, hidden, generator)
        case GlotHead():
            return GlotPooling(config, d_in, generator)
        case MlpHead():
            return MlpPooling(config, d_in, generator)
        case AdaPoolHead():
            return AdaPooling(config, d_in, generator)
        case PygPoolHead():
            return PygPooling(config, d_in, generator)


def require_width(config: HeadConfig, d_in: int) -> None:
    """Check that a head goes with tokens `d_in` wide, where that depends on the head.

    Raises:
        InputError: as `build_head`.
    """
    by_name = isinstance(config, GlotHead) and isinstance(config.conv, PygConv)
    if by_name or isinstance(config, AdaPoolHead | PygPoolHead):
        build_head(config, d_in, torch.Generator())


class Classifier(nn.Module):
    """Linear(d_in, n_classes) on a pooled vector, as in GLOT's single-sentence tasks."""

    def __init__(self, d_in: int, n_classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d_in, n_classes, generator)

    def forward(self, vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Logits."""
        return self.linear(vectors)
