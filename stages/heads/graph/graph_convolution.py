"""Graph convolution on token graphs, equal to torch-geometric's GCNConv.

Source: GCN (arXiv:1609.02907), as in GLOT's released code for table 11: GCNConv with its defaults
(symmetric normalisation, self loops, bias) on the same graph, every edge of weight 1.
Axes: t tokens of all texts, d input width, h output width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.heads.graph.convolution import Convolution
from permafrost.stages.heads.graph.neighbour_sum import neighbour_counts, neighbour_sum
from permafrost.stages.heads.graph.token_graph import Graph
from permafrost.stages.heads.initialise import glorot


class GraphConvolution(Convolution):
    """h_i = sum_j W x_j / sqrt(n_i n_j) + b over the n_i neighbours j of i, i itself among them.

    Has d * h + h parameters. Memory: that of a neighbour sum; one number per token is kept for
    the backward pass.
    """

    def __init__(self, d_in: int, d_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.d_out = d_out
        self.weight = glorot(d_out, d_in, fans=d_in + d_out, generator=generator)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, tokens: Float[Tensor, "t d"], graph: Graph) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        rows = functional.linear(tokens, self.weight)
        scale = neighbour_counts(rows, graph).rsqrt()[:, None]
        return scale * neighbour_sum(scale * rows, graph) + self.bias
