"""Sums and softmaxes over the tokens of each text of a packed batch, without padding or loops.

Axes: t tokens of all texts, n texts, d width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def owners(offsets: Int[Tensor, " n_plus_1"], n_tokens: int) -> Int[Tensor, " t"]:
    """The text of each token."""
    texts = torch.arange(len(offsets) - 1, device=offsets.device)
    # With output_size a GPU need not wait for the sum of the lengths.
    return texts.repeat_interleave(offsets.diff(), output_size=n_tokens)


def softmax(
    scores: Float[Tensor, " t"],
    offsets: Int[Tensor, " n_plus_1"],
    owner: Int[Tensor, " t"] | None = None,
) -> Float[Tensor, " t"]:
    """Softmax within each text; pass `owner`, the text of each token, if it is known already."""
    if owner is None:
        owner = owners(offsets, len(scores))
    highest = torch.segment_reduce(scores.detach(), "max", offsets=offsets)
    weights = (scores - highest.index_select(0, owner)).exp()
    sums = torch.segment_reduce(weights, "sum", offsets=offsets)
    return weights / sums.index_select(0, owner)


def weighted_sum(
    rows: Float[Tensor, "t d"], weights: Float[Tensor, " t"], offsets: Int[Tensor, " n_plus_1"]
) -> Float[Tensor, "n d"]:
    """Weighted sum of rows for each text."""
    # An embedding bag reads each row once, forward and backward, and writes only the sums; broadcasting would
    # create tensors of size [t, d], the largest of a training step.
    every = torch.arange(len(rows), device=rows.device)
    return functional.embedding_bag(
        every, rows, offsets[:-1], mode="sum", per_sample_weights=weights
    )


class _Attend(torch.autograd.Function):
    """Hand-written because the gradient of an embedding bag sorts the tokens, which are sorted already."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, offsets: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
        owner = owners(offsets, len(scores))
        weights = softmax(scores, offsets, owner)
        ctx.save_for_backward(offsets, owner, weights, *parts)
        return torch.cat([weighted_sum(part, weights, offsets) for part in parts], dim=1), weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        offsets, owner, weights, *parts = ctx.saved_tensors
        to_sums, to_weights = grads
        to_parts: list[Tensor | None] = []
        columns = to_sums.split([part.shape[1] for part in parts], dim=1)
        for part, grad, needed in zip(parts, columns, ctx.needs_input_grad[2:], strict=True):
            to_weights = to_weights + _weight_gradient(part, weights, offsets, grad)
            to_part = grad.index_select(0, owner).mul_(weights[:, None]) if needed else None
            to_parts.append(to_part)
        to_scores = weights * to_weights
        sums = torch.segment_reduce(to_scores, "sum", offsets=offsets)
        return to_scores - weights * sums.index_select(0, owner), None, *to_parts


def _weight_gradient(
    rows: Float[Tensor, "t d"],
    weights: Float[Tensor, " t"],
    offsets: Int[Tensor, " n_plus_1"],
    grad: Float[Tensor, "n d"],
) -> Float[Tensor, " t"]:
    """Gradient of the weights of a weighted sum: grad_n.row_t for each token t and its text n."""
    # The sum is recomputed, which reads each row once more; broadcasting would write them once more.
    with torch.enable_grad():
        varied = weights.detach().requires_grad_()
        sums = weighted_sum(rows.detach(), varied, offsets)
    (gradient,) = torch.autograd.grad(sums, varied, grad)
    return gradient


def attend(
    scores: Float[Tensor, " t"],
    offsets: Int[Tensor, " n_plus_1"],
    parts: Sequence[Float[Tensor, "t _"]],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " t"]]:
    """Attention pooling: softmax of `scores` within each text, then weighted sums.

    `parts` are blocks of columns of the vectors to pool; they are pooled separately and concatenated per
    text, because concatenating them per token would copy the widest tensor of a training step.

    Returns:
        The pooled vectors, with d the sum of the parts' widths, and the weights.
    """
    sums, weights = _Attend.apply(scores, offsets, *parts)
    return sums, weights
