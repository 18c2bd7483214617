"""The encoders of layer autoencoders, with codes compared layer by layer.

Source: FREEZE!, 4.2.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.freeze.layers_head import AutoencodedHead, Output

if TYPE_CHECKING:
    import torch

    from permafrost.stages.freeze.pair_heads import PairHead


class AutoencoderSiameseHead(AutoencodedHead):
    """The encoders of layer autoencoders, then a deeper MLP on the layers' cosines (FREEZE!, 4.2.3)."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"output"})

    kind: Literal["autoencoder_siamese"] = "autoencoder_siamese"
    hidden: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Width of the MLP's hidden layers."""
    n_hidden: int = Field(default=3, ge=1, le=MAX_LAYERS)
    """Hidden layers of the MLP on the cosines."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout rate of the MLP on the cosines."""

    output: Output = "hardsigmoid"
    """`hardsigmoid` as in the released notebooks, or `sigmoid` as in the paper."""

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `LayerwiseSiamese`."""
        from torch import nn

        from permafrost.stages.freeze.encoders import Dropout, activation, autoencoder_encoders
        from permafrost.stages.freeze.pair_heads import LayerwiseSiamese
        from permafrost.stages.heads.initialise import linear

        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        layers: list[nn.Module] = []
        for d_in in [n_layers] + [self.hidden] * (self.n_hidden - 1):
            layers += [
                linear(d_in, self.hidden, generator),
                nn.LayerNorm(self.hidden),
                Dropout(self.dropout, generator),
                activation(self.encoders),
            ]
        mlp = nn.Sequential(*layers, linear(self.hidden, 1, generator))
        return LayerwiseSiamese(encoders, mlp, self.output)
