"""One embedding per text from the codes of all layers, concatenated or averaged."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from permafrost.stages.freeze.encoders import autoencoder_encoders
from permafrost.stages.freeze.layers_head import AutoencodedHead, PairHead, Unified


class UnifiedHead(AutoencodedHead):
    """One embedding per text from the codes of all layers; the similarity is their cosine.

    Our own variant, beside `unified_projection`: the codes are concatenated or averaged.
    """

    has_vector: ClassVar[bool] = True

    kind: Literal["unified"] = "unified"
    join: Literal["concatenate", "average"] = "concatenate"

    @model_validator(mode="after")
    def _codes_can_be_averaged(self) -> "UnifiedHead":
        early, late = self.encoders.early, self.encoders.late
        if self.join == "average" and early != late:
            raise ValueError(
                f"codes of width {early} and {late} cannot be averaged; set encoders.early and encoders.late "
                "to the same width, or join to 'concatenate'"
            )
        return self

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `Unified`."""
        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        return Unified(encoders, Average() if self.join == "average" else Concatenate())


class Concatenate(nn.Module):
    """Concatenated codes."""

    def forward(self, codes: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return torch.cat(list(codes), dim=1)


class Average(nn.Module):
    """The mean code."""

    def forward(self, codes: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
        """The embedding of each text."""
        return torch.stack(list(codes)).mean(dim=0)
