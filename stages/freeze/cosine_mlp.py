"""An MLP on the cosines of the layers' latents.

Source: FREEZE!, 4.2.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.freeze.layers_head import LayersHead

if TYPE_CHECKING:
    import torch

    from permafrost.stages.freeze.pair_heads import PairHead


class CosineMlpHead(LayersHead):
    """An MLP on the cosines of the layers' latents (FREEZE!, 4.2.1)."""

    kind: Literal["cosine_mlp"] = "cosine_mlp"
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)
    """Width of the hidden layer."""

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `CosineMlp`."""
        from permafrost.stages.freeze.pair_heads import CosineMlp

        return CosineMlp(n_layers, self.hidden, generator)
