"""Sums over the neighbours of each token.

Axes: t tokens of all texts, b texts of a block, l length of its longest, h width.
Memory: keeps nothing but the graph; a 0/1 matrix `[b, l, l]` and two `[b, l, h]` copies of the vectors exist
for one block at a time, forward and backward.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from permafrost.stages.heads.graph.edge_list import EdgeList, gather
from permafrost.stages.heads.graph.token_graph import Block, Graph


def _adjacency(block: Block, dtype: torch.dtype) -> Tensor:
    """[text, i, j]: 1 where token i receives from token j, else 0; the diagonal is 1."""
    return (block.penalty == 0).to(dtype)


def _spread(out: Tensor, block: Block, weights: Tensor, rows: Tensor) -> None:
    """Write `weights @ rows` of a block's texts to their rows of `out`."""
    width = rows.shape[1]
    of_block = rows.index_select(0, block.source).view(*weights.shape[:2], width)
    out.index_copy_(0, block.target, torch.bmm(weights, of_block).view(-1, width))


class _NeighbourSum(torch.autograd.Function):
    """Hand-written so that the backward pass recomputes the 0/1 matrices instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, graph: Graph) -> Tensor:
        ctx.graph = graph
        if isinstance(graph, EdgeList):
            return gather(rows, graph.starts, graph.senders)
        out = rows.new_empty(len(rows) + 1, rows.shape[1])
        for block in graph:
            _spread(out, block, _adjacency(block, rows.dtype), rows)
        return out[: len(rows)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        graph: Graph = ctx.graph
        if isinstance(graph, EdgeList):
            return gather(grad, graph.back_starts, graph.back_receivers), None
        to_rows = grad.new_empty(len(grad) + 1, grad.shape[1])
        for block in graph:
            _spread(to_rows, block, _adjacency(block, grad.dtype).transpose(1, 2), grad)
        return to_rows[: len(grad)], None


def neighbour_sum(rows: Float[Tensor, "t h"], graph: Graph) -> Float[Tensor, "t h"]:
    """out_i = rows_i + the sum of rows_j over the other neighbours j of i."""
    out: Tensor = _NeighbourSum.apply(rows, graph)  # pyright: ignore[reportAssignmentType] # apply is untyped
    return out


@torch.no_grad()
def neighbour_counts(rows: Float[Tensor, "t h"], graph: Graph) -> Float[Tensor, " t"]:
    """Number of neighbours of each token, itself included, in the dtype of `rows`."""
    if isinstance(graph, EdgeList):
        return graph.starts.diff().to(rows.dtype)
    counts = rows.new_empty(len(rows) + 1)
    for block in graph:
        counts.index_copy_(0, block.target, _adjacency(block, rows.dtype).sum(dim=2).flatten())
    return counts[: len(rows)]
