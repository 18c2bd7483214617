"""An MLP on the cosines of the layers' latents.

Source: FREEZE!, 4.2.1. Axes: n pairs, l layers, d width of a latent.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.freeze.layers_head import LayersHead
from permafrost.stages.freeze.pair_heads import PairHead, cosines
from permafrost.stages.heads.initialise import linear
from permafrost.storage.errors import InputError


class CosineMlpHead(LayersHead):
    """An MLP on the cosines of the layers' latents (FREEZE!, 4.2.1)."""

    kind: Literal["cosine_mlp"] = "cosine_mlp"
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)
    """Width of the hidden layer."""

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `CosineMlp`."""
        return CosineMlp(n_layers, self.hidden, generator)


class CosineMlp(PairHead):
    """Standardised cosines of the raw latents, an MLP with ReLU, sigmoid.

    A single mean and standard deviation serve all layers. We differ: the notebook computes them on the very
    split that is scored, we on train.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, n_layers: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            linear(n_layers, hidden, generator), nn.ReLU(), linear(hidden, 1, generator)
        )
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))

    def prepare(
        self, pairs: Iterable[tuple[Float[Tensor, "n l d"], Float[Tensor, "n l d"]]]
    ) -> None:
        """Compute mean and standard deviation from the cosines of the train pairs."""
        self.standardise_by(torch.cat([cosines(a, b) for a, b in pairs]))

    def standardise_by(self, cosines_NL: Float[Tensor, "n l"]) -> None:
        """Set mean and standard deviation to those of these cosines.

        Raises:
            InputError: all cosines are equal.
        """
        deviation = cosines_NL.double().std()
        if not deviation > 0:
            raise InputError(
                f"all {cosines_NL.numel()} cosines of the train pairs are {cosines_NL.flatten()[0]:.6g}, "
                "so they cannot be standardised; give pairs of different texts"
            )
        self.mean.copy_(cosines_NL.double().mean())
        self.deviation.copy_(deviation)

    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""
        standard_NL = (cosines(a, b) - self.mean) / self.deviation
        return self.mlp(standard_NL).squeeze(-1).sigmoid()

    def codes(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "n _"]]:
        """The latents themselves."""
        return list(x.unbind(dim=1))
