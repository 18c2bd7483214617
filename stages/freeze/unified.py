"""One embedding per text from the codes of all layers.

Axes: n texts, l layers, c width of a code, e of an embedding.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from permafrost.stages.freeze.encoders import autoencoder_encoders
from permafrost.stages.freeze.layers_head import AutoencodedHead
from permafrost.stages.freeze.pair_heads import PairHead, Unified


class UnifiedHead(AutoencodedHead):
    """One embedding per text from the codes of all layers; the similarity is their cosine.

    Our own variant, beside `unified_projection`, which is the paper's (FREEZE!, 4.3). `attention` is what the
    paper tried over the codes (5.2), whose details it does not give; `weights` is what its released notebook
    has, on codes that are projected there.
    """

    has_vector: ClassVar[bool] = True

    kind: Literal["unified"] = "unified"
    join: Literal["concatenate", "average", "weights", "attention"] = "concatenate"
    """How the codes of the layers become one vector: side by side, their mean, their mean with one learnt
    weight for each layer (a softmax), or with weights from a learnt query, which differ from text to text."""

    @model_validator(mode="after")
    def _codes_can_be_averaged(self) -> "UnifiedHead":
        sizes = self.encoders
        widths = {sizes.early, sizes.late} if sizes.widths is None else {*sizes.widths}
        if self.join != "concatenate" and len(widths) > 1:
            raise ValueError(
                f"codes of width {' and '.join(map(str, sorted(widths)))} cannot be averaged; set "
                "encoders.early and encoders.late to the same width, or join to 'concatenate'"
            )
        return self

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `Unified`."""
        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        joins = {
            "concatenate": Concatenate,
            "average": Average,
            "weights": lambda: Weighted(n_layers),
            "attention": lambda: Attended(encoders.widths[0], generator),
        }
        return Unified(encoders, joins[self.join]())


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


class Weighted(nn.Module):
    """The mean code, with a learnt weight for each layer; all are equal at first."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(n_layers))

    def forward(self, codes: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
        """The embedding of each text."""
        return torch.einsum("l,lnc->nc", self.logits.softmax(dim=0), torch.stack(list(codes)))


class Attended(nn.Module):
    """The mean code, with weights from the scaled products of a learnt query with the codes."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width, generator=generator))

    def forward(self, codes: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
        """The embedding of each text."""
        codes_LNC = torch.stack(list(codes))
        weights_LN = (codes_LNC @ self.query / codes_LNC.shape[-1] ** 0.5).softmax(dim=0)
        return torch.einsum("ln,lnc->nc", weights_LN, codes_LNC)
