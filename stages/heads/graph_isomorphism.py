"""Graph isomorphism convolution on token graphs, equal to torch-geometric's GINConv.

Source: GIN (arXiv:1810.00826). GLOT's released code has graph attention only; this is GINConv with
eps 0, not trained. A token counts once, as in the paper: GINConv adds it to its neighbours, so it
has to be given the graph without self loops to do the same.
Axes: t tokens of all texts, d input width, h output width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stages.heads.initialise import linear
from stages.heads.neighbour_sum import neighbour_sum
from stages.heads.products import linear_map
from stages.heads.token_graph import Graph


class GraphIsomorphism(nn.Module):
    """h_i = W2 relu(W1 (x_i + sum_j x_j) + b1) + b2 over the other neighbours j of i.

    Has d * h + h * h + 2 h parameters. W1 is applied before the sum, with which it commutes: h is
    usually smaller than d. Memory: that of a neighbour sum; one tensor `[t, h]` is kept for the
    backward pass.
    """

    def __init__(self, d_in: int, d_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = linear(d_in, d_out, generator)
        self.second = linear(d_out, d_out, generator)

    def forward(self, tokens: Float[Tensor, "t d"], graph: Graph) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        gathered = neighbour_sum(linear_map(tokens, self.first.weight), graph) + self.first.bias
        return self.second(torch.relu_(gathered))
