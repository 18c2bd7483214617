"""One encoder per layer, trained from scratch.

Source: FREEZE!, 4.2.2, widths and activations as in the released notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.freeze.layers_head import LayersHead, Output

if TYPE_CHECKING:
    import torch

    from permafrost.stages.freeze.pair_heads import PairHead


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
        from torch import nn

        from permafrost.stages.freeze.pair_heads import LayerwiseSiamese
        from permafrost.stages.freeze.siamese_encoders import siamese_encoders
        from permafrost.stages.heads.initialise import linear

        encoders = siamese_encoders(n_layers, d_model, self.d_code, generator)
        mlp = nn.Sequential(
            linear(n_layers, self.hidden, generator),
            nn.LayerNorm(self.hidden),
            nn.GELU(),
            linear(self.hidden, 1, generator),
        )
        return LayerwiseSiamese(encoders, mlp, self.output)
