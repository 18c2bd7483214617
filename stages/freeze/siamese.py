"""One encoder per layer, trained from scratch.

Source: FREEZE!, 4.2.2, widths and activations as in the released notebooks.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.freeze.encoders import (
    LayerEncoders,
    LayerGroups,
    StackedLinear,
    StackedNorm,
)
from permafrost.stages.freeze.layers_head import LayersHead, Output
from permafrost.stages.freeze.pair_heads import LayerwiseSiamese, PairHead
from permafrost.stages.heads.initialise import linear


class SiameseHead(LayersHead):
    """One encoder per layer, trained from scratch, then an MLP on the layers' cosines (FREEZE!, 4.2.2)."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"output"})

    kind: Literal["siamese"] = "siamese"
    d_code: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Width of every linear layer of an encoder."""
    hidden: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Hidden width of the MLP on the cosines."""

    output: Output = "hardsigmoid"
    """`hardsigmoid` as in the released notebooks, or `sigmoid` as in the paper."""

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `LayerwiseSiamese`."""
        encoders = siamese_encoders(n_layers, d_model, self.d_code, generator)
        mlp = nn.Sequential(
            linear(n_layers, self.hidden, generator),
            nn.LayerNorm(self.hidden),
            nn.GELU(),
            linear(self.hidden, 1, generator),
        )
        return LayerwiseSiamese(encoders, mlp, self.output)


def siamese_encoders(
    n_layers: int, d_model: int, d_code: int, generator: torch.Generator
) -> LayerEncoders:
    """Three linear layers per encoder with GELU in between; a layer norm after the first."""
    network = nn.Sequential(
        StackedLinear(n_layers, d_model, d_code, generator),
        StackedNorm(n_layers, d_code),
        nn.GELU(),
        StackedLinear(n_layers, d_code, d_code, generator),
        nn.GELU(),
        StackedLinear(n_layers, d_code, d_code, generator),
    )
    return LayerEncoders(d_model, [d_code], LayerGroups([n_layers], [network]))
