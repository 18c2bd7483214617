"""Graph attention on token graphs, equal to torch-geometric's GATConv.

Source: GAT (arXiv:1710.10903) as GLOT's released code runs it: edge_dim 1 with every edge attribute
1, LeakyReLU 0.2, bias, self loops. The released code has one attention head; further ones are those
of GATConv, concatenated.
Axes: t tokens of all texts, d input width, h output width, k width of an attention head.
Memory: W x and the result, `[t, h]` each, and two numbers per token and attention head; beside them what
the attention of one head on blocks, or on edges, needs while it is made, forward and backward.
"""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from permafrost.stages.heads import attention_on_blocks, attention_on_edges
from permafrost.stages.heads.conv import Conv, Convolution
from permafrost.stages.heads.edge_list import EdgeList
from permafrost.stages.heads.initialise import glorot
from permafrost.stages.heads.token_graph import Graph

SLOPE = 0.2


class _Attend(torch.autograd.Function):
    """One attention head on its columns of W x, `rows` `[t, k]`.

    `vectors` `[4, k]` are its shares of a_s, a_d and the two factors of c.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, vectors: Tensor, graph: Graph) -> Tensor:
        sent, received = vectors[:2] @ rows.t()
        received += vectors[2] @ vectors[3]
        if isinstance(graph, EdgeList):
            out = attention_on_edges.attend(graph, rows, sent, received, SLOPE)
        else:
            out = attention_on_blocks.attend(graph, rows, sent, received, SLOPE)
        ctx.graph = graph
        ctx.save_for_backward(rows, vectors, sent, received, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        rows, vectors, sent, received, out = ctx.saved_tensors
        graph: Graph = ctx.graph
        given = (rows, sent, received, SLOPE, grad, torch.linalg.vecdot(grad, out))
        if isinstance(graph, EdgeList):
            to_rows, to_sent, to_received = attention_on_edges.gradients(graph, *given)
        else:
            to_rows, to_sent, to_received = attention_on_blocks.gradients(graph, *given)
        ends, factors = vectors.split(2)
        to_ends = torch.stack([to_sent, to_received])
        to_rows.addmm_(to_ends.t(), ends)
        to_factors = factors.flip(0) * to_received.sum()
        return to_rows, torch.cat([to_ends @ rows, to_factors]), None


class GraphAttention(Convolution):
    """h_i = sum_j alpha_ij W x_j + b, alpha = softmax over neighbours j of
    LeakyReLU(a_s . W x_j + a_d . W x_i + c), for each attention head on its share of the h columns.

    Has d * h + 5 h parameters, however many attention heads. c is one number per attention head,
    kept as the product of two vectors (torch-geometric's lin_edge and att_edge), so that weights and
    counts carry over: there, every edge attribute is 1 and a self loop gets the mean of a token's
    incoming ones, which is 1 again, or without effect where the self loop is the only edge.

    Args:
        d_in: width of a token.
        d_out: width of the result, all attention heads together.
        generator: draws the weights.
        heads: attention heads; has to divide d_out.
    """

    def __init__(self, d_in: int, d_out: int, generator: torch.Generator, heads: int = 1) -> None:
        super().__init__()
        self.heads, self.d_out = heads, d_out
        fans = heads + d_out // heads
        self.weight = glorot(d_out, d_in, fans=d_in + d_out, generator=generator)
        self.sends = glorot(d_out, fans=fans, generator=generator)
        self.receives = glorot(d_out, fans=fans, generator=generator)
        self.edge = glorot(d_out, fans=1 + d_out, generator=generator)
        self.edge_attends = glorot(d_out, fans=fans, generator=generator)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, tokens: Float[Tensor, "t d"], graph: Graph) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        rows = functional.linear(tokens, self.weight).chunk(self.heads, dim=1)
        vectors = torch.stack([self.sends, self.receives, self.edge, self.edge_attends])
        parts: list[Tensor] = [
            _Attend.apply(mine, four, graph)  # pyright: ignore[reportAssignmentType] # apply is untyped
            for mine, four in zip(rows, vectors.chunk(self.heads, dim=1), strict=True)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)) + self.bias


class GatConv(Conv):
    """Graph attention, the convolution of the paper's main results."""

    splits_heads: ClassVar[bool] = True

    kind: Literal["gat"] = "gat"

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `GraphAttention`."""
        return GraphAttention(d_in, hidden, generator, heads)
