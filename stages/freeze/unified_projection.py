"""One embedding per text: the sum over layers of each code's up-projection.

Source: FREEZE!, 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.freeze.layers_head import AutoencodedHead

if TYPE_CHECKING:
    import torch

    from permafrost.stages.freeze.pair_heads import PairHead


class UnifiedProjectionHead(AutoencodedHead):
    """One embedding per text: the sum over layers of each code's up-projection; the similarity is a cosine.

    FREEZE!'s unified embedding (4.3, "Pooling and attention mechanisms"); the paper gives neither its width
    nor its training on pairs. We differ: there the autoencoders reconstruct from the sum, here they are
    pretrained layer by layer, and the projections are learnt on the pairs.
    """

    has_vector: ClassVar[bool] = True

    kind: Literal["unified_projection"] = "unified_projection"
    d_embed: int = Field(default=1024, ge=1, le=MAX_WIDTH)
    """Width of the embedding."""

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `Unified`."""
        from permafrost.stages.freeze.code_joins import SumOfProjections
        from permafrost.stages.freeze.encoders import autoencoder_encoders
        from permafrost.stages.freeze.pair_heads import Unified

        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        groups = zip(encoders.groups.sizes, encoders.widths, strict=True)
        d_codes = sum(n * width for n, width in groups)
        return Unified(encoders, SumOfProjections(d_codes, self.d_embed, generator))
