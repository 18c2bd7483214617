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
    nor its training on pairs. As there, autoencoders may be pretrained to reconstruct from the sum (`joined`
    of the pretraining, of this width): the projections then start from theirs. From others they are learnt
    on the pairs.
    """

    has_vector: ClassVar[bool] = True

    kind: Literal["unified_projection"] = "unified_projection"
    d_embed: int = Field(default=1024, ge=1, le=MAX_WIDTH)
    """Width of the embedding."""

    @property
    def join_width(self) -> int:
        """Its embedding's."""
        return self.d_embed

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `Unified`."""
        from permafrost.stages.freeze.code_joins import SumOfProjections
        from permafrost.stages.freeze.encoders import autoencoder_encoders
        from permafrost.stages.freeze.pair_heads import Unified

        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        return Unified(encoders, SumOfProjections(encoders.d_codes, self.d_embed, generator))
