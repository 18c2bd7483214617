"""Graph attention on token graphs, equal to torch-geometric's GATConv.

Source: GAT (arXiv:1710.10903) as in GLOT's released code: edge_dim 1 with every edge attribute 1, LeakyReLU
0.2, bias, self loops. The released code has one attention head; several are concatenated, as in GATConv.
Axes: t tokens of all texts, d input width, h output width, k width of an attention head.
Memory: W x and the result, `[t, h]` each, and two numbers per token and attention head. In addition, on
blocks of b texts of length l, tensors `[b, l, l]` and `[b, l, k]` exist for one block at a time; on e edges a
few tensors `[e]`. Scores have rank 1 before the LeakyReLU, so the backward pass recomputes the attention from
two vectors instead of keeping it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from permafrost.stages.heads.graph.convolution import Convolution
from permafrost.stages.heads.graph.edge_list import EdgeList, gather
from permafrost.stages.heads.graph.token_graph import Block, Graph
from permafrost.stages.heads.initialise import glorot
from permafrost.stages.heads.ragged_sums import softmax

SLOPE = 0.2


class _Attend(torch.autograd.Function):
    """One attention head on its columns of W x, `rows` `[t, k]`.

    `vectors` `[4, k]` are its parts of a_s, a_d and the two factors of c.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, vectors: Tensor, graph: Graph) -> Tensor:
        sent, received = vectors[:2] @ rows.t()
        received += vectors[2] @ vectors[3]
        if isinstance(graph, EdgeList):
            out = attend_on_edges(graph, rows, sent, received, SLOPE)
        else:
            out = attend_on_blocks(graph, rows, sent, received, SLOPE)
        ctx.graph = graph
        ctx.save_for_backward(rows, vectors, sent, received, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        rows, vectors, sent, received, out = ctx.saved_tensors
        graph: Graph = ctx.graph
        inputs = (rows, sent, received, SLOPE, grad, torch.linalg.vecdot(grad, out))
        if isinstance(graph, EdgeList):
            to_rows, to_sent, to_received = gradients_on_edges(graph, *inputs)
        else:
            to_rows, to_sent, to_received = gradients_on_blocks(graph, *inputs)
        ends, factors = vectors.split(2)
        to_ends = torch.stack([to_sent, to_received])
        to_rows.addmm_(to_ends.t(), ends)
        to_factors = factors.flip(0) * to_received.sum()
        return to_rows, torch.cat([to_ends @ rows, to_factors]), None


class GraphAttention(Convolution):
    """h_i = sum_j alpha_ij W x_j + b, alpha = softmax over neighbours j of
    LeakyReLU(a_s . W x_j + a_d . W x_i + c), for each attention head on its part of the h columns.

    Has d * h + 5 h parameters, whatever the number of attention heads. c is one number per attention head,
    kept as the product of two vectors (torch-geometric's lin_edge and att_edge), so that weights and
    parameter counts carry over: there, every edge attribute is 1, and a self loop gets the mean of a token's
    incoming ones, which is 1 again, or has no effect if the self loop is the only edge.

    Args:
        d_in: input width.
        d_out: output width, of all attention heads together.
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
            _Attend.apply(columns, four, graph)  # pyright: ignore[reportAssignmentType] # apply is untyped
            for columns, four in zip(rows, vectors.chunk(self.heads, dim=1), strict=True)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)) + self.bias


def _block_scores(block: Block, sent: Tensor, received: Tensor) -> Tensor:
    """sent_j + received_i of every pair of a block, `[b, l, l]`, before the LeakyReLU."""
    shape = block.penalty.shape[:2]
    rows = received.index_select(0, block.source).view(*shape, 1)
    return rows + sent.index_select(0, block.source).view(shape[0], 1, shape[1])


def _block_attention(block: Block, scores: Tensor, slope: float) -> Tensor:
    """Softmax over the neighbours of each token."""
    return functional.leaky_relu(scores, slope).add_(block.penalty).softmax(dim=-1)


def attend_on_blocks(
    blocks: Sequence[Block],
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
) -> Float[Tensor, "t h"]:
    """out_i = sum_j softmax_j(LeakyReLU(sent_j + received_i)) rows_j over the neighbours j of i."""
    n_tokens, width = rows.shape
    out = rows.new_empty(n_tokens + 1, width)
    for block in blocks:
        attention = _block_attention(block, _block_scores(block, sent, received), slope)
        of_block = rows.index_select(0, block.source).view(*attention.shape[:2], width)
        out.index_copy_(0, block.target, torch.bmm(attention, of_block).view(-1, width))
    return out[:n_tokens]


def gradients_on_blocks(
    blocks: Sequence[Block],
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
    grad: Float[Tensor, "t h"],
    correction: Float[Tensor, " t"],
) -> tuple[Float[Tensor, "t h"], Float[Tensor, " t"], Float[Tensor, " t"]]:
    """Gradients of rows, sent and received; `correction` is grad_i.out_i, which the softmax of token i
    subtracts from the gradient of each of its scores."""
    n_tokens, width = rows.shape
    to_rows = rows.new_empty(n_tokens + 1, width)
    to_sent, to_received = rows.new_empty(2, n_tokens + 1)
    for block in blocks:
        shape = (*block.penalty.shape[:2], width)
        of_block = rows.index_select(0, block.source).view(shape)
        arriving = grad.index_select(0, block.source).view(shape)
        scores = _block_scores(block, sent, received)
        attention = _block_attention(block, scores, slope)
        change = torch.bmm(arriving, of_block.transpose(1, 2))
        change -= correction.index_select(0, block.source).view(*shape[:2], 1)
        change *= attention
        change = torch.where(scores > 0, change, slope * change)
        to_rows.index_copy_(
            0, block.target, torch.bmm(attention.transpose(1, 2), arriving).view(-1, width)
        )
        to_sent.index_copy_(0, block.target, change.sum(dim=1).flatten())
        to_received.index_copy_(0, block.target, change.sum(dim=2).flatten())
    return to_rows[:n_tokens], to_sent[:n_tokens], to_received[:n_tokens]


def _edge_attention(
    edges: EdgeList, sent: Tensor, received: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """Scores of the edges before the LeakyReLU, and the softmax over the edges of each receiver."""
    scores = sent.index_select(0, edges.senders).add_(received.index_select(0, edges.receivers))
    return scores, softmax(functional.leaky_relu(scores, slope), edges.starts, edges.receivers)


def attend_on_edges(
    edges: EdgeList,
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
) -> Float[Tensor, "t h"]:
    """out_i = sum_j softmax_j(LeakyReLU(sent_j + received_i)) rows_j over the neighbours j of i."""
    _, attention = _edge_attention(edges, sent, received, slope)
    return gather(rows, edges.starts, edges.senders, attention)


def gradients_on_edges(
    edges: EdgeList,
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
    grad: Float[Tensor, "t h"],
    correction: Float[Tensor, " t"],
) -> tuple[Float[Tensor, "t h"], Float[Tensor, " t"], Float[Tensor, " t"]]:
    """Gradients of rows, sent and received; `correction` is grad_i.out_i.

    The gradient of a score is p_ij (grad_i.rows_j - correction_i), with p the attention times the slope of
    the LeakyReLU. Its sums over j and over i follow from sums of rows and of grads, so that no product per
    edge is needed.
    """
    scores, attention = _edge_attention(edges, sent, received, slope)
    pulled = torch.where(scores > 0, attention, slope * attention)
    to_received = torch.linalg.vecdot(grad, gather(rows, edges.starts, edges.senders, pulled))
    to_received -= correction * torch.segment_reduce(pulled, "sum", offsets=edges.starts)
    attention, pulled = (x.index_select(0, edges.order) for x in (attention, pulled))
    starts, receivers = edges.back_starts, edges.back_receivers
    to_rows = gather(grad, starts, receivers, attention)
    to_sent = torch.linalg.vecdot(rows, gather(grad, starts, receivers, pulled))
    pulled *= correction.index_select(0, receivers)
    to_sent -= torch.segment_reduce(pulled, "sum", offsets=starts)
    return to_rows, to_sent, to_received
