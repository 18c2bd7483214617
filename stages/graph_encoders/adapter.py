"""The map from a graph's vector to a token that a language model reads (GT2VEC, section 3.2)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.heads.initialise import linear


class Adapter(nn.Module):
    """W2 ReLU(W1 g + b1) + b2.

    Args:
        d_in: width of a graph's vector.
        d_out: of the language model's token embeddings.
        draw: draws the weights.
        hidden: width in between, which the paper leaves open; None for that of the graph's vector.
    """

    def __init__(
        self, d_in: int, d_out: int, draw: torch.Generator, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.first = linear(d_in, hidden or d_in, draw)
        self.second = linear(hidden or d_in, d_out, draw)

    def forward(self, graphs: Float[Tensor, "g d_in"]) -> Float[Tensor, "g d_out"]:
        """One token per graph."""
        return self.second(torch.relu(self.first(graphs)))
