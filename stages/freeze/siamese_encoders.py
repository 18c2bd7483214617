"""Encoders of the latents of each layer, trained from scratch.

Source: FREEZE!, 4.2.2, widths and activations as in the released notebooks.
"""

import torch
from torch import nn

from permafrost.stages.freeze.encoders import LayerEncoders, LayerGroups, StackedLinear, StackedNorm


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
