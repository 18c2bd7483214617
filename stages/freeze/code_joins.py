"""How the codes of all layers become one vector of a text.

Source: FREEZE!, 4.3. Axes: n texts, l layers, c width of a code, e of an embedding.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.heads.initialise import linear


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


class SumOfProjections(nn.Module):
    """The sum of each code's up-projection, computed as one linear map of the concatenated codes."""

    def __init__(self, d_codes: int, d_embed: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d_codes, d_embed, generator)

    def forward(self, codes: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return self.linear(torch.cat(list(codes), dim=1))
