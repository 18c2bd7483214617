"""Graph isomorphism convolutions on token graphs, equal to torch-geometric's GINConv.

Source: GIN (arXiv:1810.00826): the sum over a token and its neighbours, passed through a two-layer MLP with
batch normalisation in between (section 7). GLOT lists GIN in its table 11 but prints no update for it; its
released code runs GINConv with eps 0, not trained, and that MLP, on the graph of its equation for A. There a
token is its own neighbour if tau is below 1, and GINConv adds it once more, so it counts twice; GIN's own
graphs have no such edges. `GraphIsomorphism` follows the released code, `PlainGraphIsomorphism` counts a
token once and normalises nothing.
Where we differ: at tau 1 no token is its own neighbour, which in the released code depends on the rounding of
its cosine with itself. For texts of one token in training see batch_normalisation.
Axes: t tokens of all texts, d input width, h output width.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.heads.batch_normalisation import normalised
from permafrost.stages.heads.graph.convolution import Convolution
from permafrost.stages.heads.graph.neighbour_sum import neighbour_sum
from permafrost.stages.heads.graph.token_graph import Graph
from permafrost.stages.heads.initialise import linear


class GraphIsomorphism(Convolution):
    """h_i = W2 relu(norm(W1 (c x_i + sum_j x_j) + b1)) + b2 over the other neighbours j of i.

    c is 2 if a token is its own neighbour, else 1. Has d * h + h * h + 4 h parameters. W1 is
    applied before the sum, with which it commutes: h is usually smaller than d. Memory: that of a neighbour
    sum; two tensors `[t, h]` are kept for the backward pass. As with every batch normalisation, vectors
    depend on `train()` and `eval()`, and in training on the batch.
    """

    def __init__(
        self, d_in: int, d_out: int, generator: torch.Generator, own: Literal[1, 2] = 2
    ) -> None:
        super().__init__()
        self.d_out = d_out
        self.own = own
        """How often a token counts itself."""
        self.first = linear(d_in, d_out, generator)
        self.norm = nn.BatchNorm1d(d_out)
        self.second = linear(d_out, d_out, generator)

    def forward(self, tokens: Float[Tensor, "t d"], graph: Graph) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        rows = functional.linear(tokens, self.first.weight)
        gathered = neighbour_sum(rows, graph) + self.first.bias
        if self.own == 2:
            gathered += rows
        return self.second(torch.relu_(normalised(self.norm, gathered)))


class PlainGraphIsomorphism(Convolution):
    """h_i = W2 relu(W1 (x_i + sum_j x_j) + b1) + b2 over the other neighbours j of i.

    Has d * h + h * h + 2 h parameters. Memory: as above, with one tensor `[t, h]` kept.
    """

    def __init__(self, d_in: int, d_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.d_out = d_out
        self.first = linear(d_in, d_out, generator)
        self.second = linear(d_out, d_out, generator)

    def forward(self, tokens: Float[Tensor, "t d"], graph: Graph) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        gathered = (
            neighbour_sum(functional.linear(tokens, self.first.weight), graph) + self.first.bias
        )
        return self.second(torch.relu_(gathered))
