"""Graph attention on dense token graphs, equal to torch-geometric's GATConv.

Source: GAT (arXiv:1710.10903) as GLOT's released code runs it: edge_dim 1 with every edge attribute
1, LeakyReLU 0.2, bias, self loops. The released code has one attention head; further ones are those
of GATConv, concatenated.
Axes: t tokens of all texts, b texts of a block, l longest of them, h width.
Memory: W x and the result, `[t, h]` each, and two numbers per token and attention head;
`[b, l, l]` tensors live for one block and one attention head at a time, forward and backward.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from stages.heads.initialise import glorot
from stages.heads.token_graph import Block

SLOPE = 0.2


def _scores(block: Block, sent: Tensor, received: Tensor) -> Tensor:
    """sent_j + received_i of every pair of a block, `[b, l, l]`, before the LeakyReLU."""
    shape = block.penalty.shape[:2]
    rows = received.index_select(0, block.source).view(*shape, 1)
    return rows + sent.index_select(0, block.source).view(shape[0], 1, shape[1])


def _attention(block: Block, scores: Tensor) -> Tensor:
    """Softmax over the neighbours of each token."""
    return functional.leaky_relu(scores, SLOPE).add_(block.penalty).softmax(dim=-1)


class _Aggregate(torch.autograd.Function):
    """out_i = sum_j softmax_j(LeakyReLU(sent_j + received_i)) rows_j over the neighbours j of i.

    Scores have rank 1 before the LeakyReLU, so the backward pass makes the attention again from two
    vectors instead of keeping it: `[b, l, l]` tensors live for one block at a time.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: Tensor, received: Tensor, blocks: Sequence[Block]
    ) -> Tensor:
        n_tokens, width = rows.shape
        out = rows.new_empty(n_tokens + 1, width)
        for block in blocks:
            attention = _attention(block, _scores(block, sent, received))
            mine = rows.index_select(0, block.source).view(*attention.shape[:2], width)
            out.index_copy_(0, block.target, torch.bmm(attention, mine).view(-1, width))
        out = out[:n_tokens]
        ctx.blocks = blocks
        ctx.save_for_backward(rows, sent, received, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        rows, sent, received, out = ctx.saved_tensors
        n_tokens, width = rows.shape
        to_rows = rows.new_empty(n_tokens + 1, width)
        to_sent, to_received = rows.new_empty(2, n_tokens + 1)
        # The softmax's correction, sum_j attention_ij grad_i.rows_j, is grad_i.out_i.
        correction = torch.linalg.vecdot(grad, out)
        for block in ctx.blocks:
            shape = (*block.penalty.shape[:2], width)
            mine = rows.index_select(0, block.source).view(shape)
            arriving = grad.index_select(0, block.source).view(shape)
            scores = _scores(block, sent, received)
            attention = _attention(block, scores)
            change = torch.bmm(arriving, mine.transpose(1, 2))
            change -= correction.index_select(0, block.source).view(*shape[:2], 1)
            change *= attention
            change = torch.ops.aten.leaky_relu_backward(change, scores, SLOPE, False)
            to_rows.index_copy_(
                0, block.target, torch.bmm(attention.transpose(1, 2), arriving).view(-1, width)
            )
            to_sent.index_copy_(0, block.target, change.sum(dim=1).flatten())
            to_received.index_copy_(0, block.target, change.sum(dim=2).flatten())
        return to_rows[:n_tokens], to_sent[:n_tokens], to_received[:n_tokens], None


class GraphAttention(nn.Module):
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
        self.heads = heads
        fans = heads + d_out // heads
        self.weight = glorot(d_out, d_in, fans=d_in + d_out, generator=generator)
        self.sends = glorot(d_out, fans=fans, generator=generator)
        self.receives = glorot(d_out, fans=fans, generator=generator)
        self.edge = glorot(d_out, fans=1 + d_out, generator=generator)
        self.edge_attends = glorot(d_out, fans=fans, generator=generator)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(
        self, tokens: Float[Tensor, "t d"], blocks: Sequence[Block]
    ) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        rows = (tokens @ self.weight.t()).chunk(self.heads, dim=1)
        vectors = torch.stack([self.sends, self.receives, self.edge, self.edge_attends])
        parts = [
            self._attend(mine, four, blocks)
            for mine, four in zip(rows, vectors.chunk(self.heads, dim=1), strict=True)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)) + self.bias

    def _attend(self, rows: Tensor, four: Tensor, blocks: Sequence[Block]) -> Tensor:
        """One attention head on its columns of W x and of the four vectors."""
        sends, receives, edge, edge_attends = four
        received = rows @ receives + edge @ edge_attends
        out: Tensor = _Aggregate.apply(rows, rows @ sends, received, blocks)  # pyright: ignore[reportAssignmentType] # apply is untyped
        return out
