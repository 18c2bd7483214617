"""One embedding per text: the sum over layers of each code's up-projection.

Source: FREEZE!, 4.3. Axes: n texts, e width of an embedding.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.freeze.encoders import autoencoder_encoders
from permafrost.stages.freeze.layers_head import AutoencodedHead
from permafrost.stages.freeze.pair_heads import PairHead, Unified
from permafrost.stages.heads.initialise import linear


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
        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        groups = zip(encoders.groups.sizes, encoders.widths, strict=True)
        d_codes = sum(n * width for n, width in groups)
        return Unified(encoders, SumOfProjections(d_codes, self.d_embed, generator))


class SumOfProjections(nn.Module):
    """The sum of each code's up-projection, computed as one linear map of the concatenated codes."""

    def __init__(self, d_codes: int, d_embed: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d_codes, d_embed, generator)

    def forward(self, codes: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return self.linear(torch.cat(list(codes), dim=1))
