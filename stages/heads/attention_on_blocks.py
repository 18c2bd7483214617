"""Attention over the neighbours of each token in blocks of texts, and its gradient.

Axes: t tokens of all texts, b texts of a block, l its length, h width.
Memory: tensors `[b, l, l]` and `[b, l, h]` live for one block at a time. Scores have rank 1 before the
LeakyReLU, so the gradient makes the attention again from two vectors instead of keeping it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from permafrost.stages.heads.token_graph import Block


def _scores(block: Block, sent: Tensor, received: Tensor) -> Tensor:
    """sent_j + received_i of every pair of a block, `[b, l, l]`, before the LeakyReLU."""
    shape = block.penalty.shape[:2]
    rows = received.index_select(0, block.source).view(*shape, 1)
    return rows + sent.index_select(0, block.source).view(shape[0], 1, shape[1])


def _attention(block: Block, scores: Tensor, slope: float) -> Tensor:
    """Softmax over the neighbours of each token."""
    return functional.leaky_relu(scores, slope).add_(block.penalty).softmax(dim=-1)


def attend(
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
        attention = _attention(block, _scores(block, sent, received), slope)
        mine = rows.index_select(0, block.source).view(*attention.shape[:2], width)
        out.index_copy_(0, block.target, torch.bmm(attention, mine).view(-1, width))
    return out[:n_tokens]


def gradients(
    blocks: Sequence[Block],
    rows: Float[Tensor, "t h"],
    sent: Float[Tensor, " t"],
    received: Float[Tensor, " t"],
    slope: float,
    grad: Float[Tensor, "t h"],
    correction: Float[Tensor, " t"],
) -> tuple[Float[Tensor, "t h"], Float[Tensor, " t"], Float[Tensor, " t"]]:
    """Gradients of rows, sent and received; `correction` is grad_i.out_i, which is what the softmax of
    token i takes off the gradient of each of its scores."""
    n_tokens, width = rows.shape
    to_rows = rows.new_empty(n_tokens + 1, width)
    to_sent, to_received = rows.new_empty(2, n_tokens + 1)
    for block in blocks:
        shape = (*block.penalty.shape[:2], width)
        mine = rows.index_select(0, block.source).view(shape)
        arriving = grad.index_select(0, block.source).view(shape)
        scores = _scores(block, sent, received)
        attention = _attention(block, scores, slope)
        change = torch.bmm(arriving, mine.transpose(1, 2))
        change -= correction.index_select(0, block.source).view(*shape[:2], 1)
        change *= attention
        change = torch.where(scores > 0, change, slope * change)
        to_rows.index_copy_(
            0, block.target, torch.bmm(attention.transpose(1, 2), arriving).view(-1, width)
        )
        to_sent.index_copy_(0, block.target, change.sum(dim=1).flatten())
        to_received.index_copy_(0, block.target, change.sum(dim=2).flatten())
    return to_rows[:n_tokens], to_sent[:n_tokens], to_received[:n_tokens]
