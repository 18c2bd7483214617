"""Products of paired rows, and weighted sums of the rows paired with one, without copying a row per pair.

Each is the gradient of the other; benchmarks/graph_encoder.py measures what they save.
Axes: p pairs, l left rows, r right rows, d width, a attention heads, each with d / a columns.
Memory: rows are read where they lie; a few of them are copied at a time, and one number is kept for each pair
and attention head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from permafrost.stages.heads.graph.token_graph import COPIED


@dataclass(frozen=True)
class _Order:
    """Pairs in the order of one of their ends."""

    pairs: Int[Tensor, " p"]
    starts: Int[Tensor, " n_plus_1"]
    """Where the pairs of each row begin."""
    others: Int[Tensor, " p"]
    """The row at the other end."""

    def sums(self, rows: Tensor, weights: Tensor) -> Tensor:
        """For each row at this end the weighted sum of those at the other; `rows` are of the other end."""
        n_heads = weights.shape[1]
        columns = rows.chunk(n_heads, dim=1)
        shares = weights.to(rows.dtype).index_select(0, self.pairs).unbind(dim=1)
        # An embedding bag reads the rows and writes the sums; any other way creates a tensor [p, d].
        parts = [
            functional.embedding_bag(
                self.others,
                column.contiguous(),
                self.starts,
                mode="sum",
                per_sample_weights=share.contiguous(),
                include_last_offset=True,
            )
            for column, share in zip(columns, shares, strict=True)
        ]
        return torch.cat(parts, dim=1)


def _order(ends: Tensor, others: Tensor, n: int) -> _Order:
    pairs = ends.argsort(stable=True)
    starts = functional.pad(torch.bincount(ends, minlength=n).cumsum(0), (1, 0))
    return _Order(pairs, starts, others[pairs])


@dataclass(frozen=True)
class Pairs:
    """Which left row is paired with which right row."""

    left: Int[Tensor, " p"]
    right: Int[Tensor, " p"]
    by_left: _Order
    by_right: _Order


def pair(left: Int[Tensor, " p"], right: Int[Tensor, " p"], n_left: int, n_right: int) -> Pairs:
    """Pairs of `n_left` with `n_right` rows, sorted by either end for what follows."""
    return Pairs(left, right, _order(left, right, n_left), _order(right, left, n_right))


def _products(pairs: Pairs, left: Tensor, right: Tensor, n_heads: int) -> Tensor:
    step = max(1, COPIED[left.device.type] // left.shape[1])
    parts = [left.new_empty(0, n_heads)]
    for of_left, of_right in zip(pairs.left.split(step), pairs.right.split(step), strict=True):
        one = left.index_select(0, of_left).view(-1, n_heads, left.shape[1] // n_heads)
        parts.append(torch.linalg.vecdot(one, right.index_select(0, of_right).view_as(one)))
    return torch.cat(parts)


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, pairs: Pairs, n_heads: int) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(left, right)
        return _products(pairs, left, right, n_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        left, right = ctx.saved_tensors
        pairs: Pairs = ctx.pairs
        return pairs.by_left.sums(right, grad), pairs.by_right.sums(left, grad), None, None


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        ctx.save_for_backward(weights, right)
        return pairs.by_left.sums(right, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        weights, right = ctx.saved_tensors
        pairs: Pairs = ctx.pairs
        to_weights = to_right = None
        if ctx.needs_input_grad[0]:
            to_weights = _products(pairs, grad, right, weights.shape[1]).to(weights.dtype)
        if ctx.needs_input_grad[1]:
            to_right = pairs.by_right.sums(grad, weights)
        return to_weights, to_right, None


def paired_dots(
    left: Float[Tensor, "l d"], right: Float[Tensor, "r d"], pairs: Pairs, n_heads: int
) -> Float[Tensor, "p a"]:
    """The dot product of each pair's rows, by attention head."""
    return _Dots.apply(left, right, pairs, n_heads)  # pyright: ignore[reportReturnType] # apply is untyped


def paired_sums(
    weights: Float[Tensor, "p a"], right: Float[Tensor, "r d"], pairs: Pairs
) -> Float[Tensor, "l d"]:
    """For each left row the weighted sum of the right rows paired with it."""
    return _Sums.apply(weights, right, pairs)  # pyright: ignore[reportReturnType] # apply is untyped
