"""Sums and softmaxes over the tokens of each text of a packed batch, without padding or loops.

Axes: t tokens of all texts, n texts, d width.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def owners(offsets: Int[Tensor, " n_plus_1"], n_tokens: int) -> Int[Tensor, " t"]:
    """Text of each token."""
    texts = torch.arange(len(offsets) - 1, device=offsets.device)
    # output_size spares a GPU the wait for the sum of the lengths.
    return texts.repeat_interleave(offsets.diff(), output_size=n_tokens)


def softmax(scores: Float[Tensor, " t"], offsets: Int[Tensor, " n_plus_1"]) -> Float[Tensor, " t"]:
    """Softmax inside each text."""
    owner = owners(offsets, len(scores))
    highest = torch.segment_reduce(scores.detach(), "max", offsets=offsets)
    weights = (scores - highest[owner]).exp()
    return weights / torch.segment_reduce(weights, "sum", offsets=offsets)[owner]


def weighted_sum(
    rows: Float[Tensor, "t d"], weights: Float[Tensor, " t"], offsets: Int[Tensor, " n_plus_1"]
) -> Float[Tensor, "n d"]:
    """Sum of weight times row over each text."""
    # An embedding bag reads each row once, forward and backward, and writes only the sums; anything
    # written with broadcasts makes tensors of size [t, d], the largest of a training step.
    every = torch.arange(len(rows), device=rows.device)
    return functional.embedding_bag(
        every, rows, offsets[:-1], mode="sum", per_sample_weights=weights
    )


def attend(
    scores: Float[Tensor, " t"],
    offsets: Int[Tensor, " n_plus_1"],
    parts: Sequence[Float[Tensor, "t _"]],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " t"]]:
    """Attention pooling: softmax of `scores` inside each text, then weighted sums.

    `parts` are blocks of columns of the vectors to pool; they are pooled one by one and joined
    per text, because joining them per token would copy the widest tensor of a training step.

    Returns:
        The pooled vectors, d the sum of the parts' widths, and the weights.
    """
    weights = softmax(scores, offsets)
    sums = [weighted_sum(part, weights, offsets) for part in parts]
    return (sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)), weights
