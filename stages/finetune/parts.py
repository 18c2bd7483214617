"""Gradients of a batch that is computed in parts, with losses that compare all of its embeddings.

The embeddings are computed twice: first all of them without gradients, from which the loss and its gradients
by the embeddings follow; then part by part with gradients, to which those are passed on. Source: Gao et al.,
Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021). The result is that of the
whole batch, up to rounding, unless modules look at a batch as a whole (batch normalisation) or draw random
numbers, which they draw anew for each part. Axes: i items, d width.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.stages.finetune.module import Embedded

Embed = Callable[[NDArray[np.int64]], Embedded]


def parts_of(n: int, at_a_time: int | None) -> Iterator[NDArray[np.int64]]:
    """Numbers 0 to n - 1, so many at a time."""
    size = at_a_time or n
    return (np.arange(at, min(at + size, n)) for at in range(0, n, size))


def joined(parts: Sequence[Embedded]) -> Embedded:
    """Embeddings of several parts, one after the other."""
    described = [p.described for p in parts if p.described is not None]
    return Embedded(torch.cat([p.z for p in parts]), torch.cat(described) if described else None)


def gradients_in_parts(
    module: nn.Module,
    embed: Embed,
    n_items: int,
    at_a_time: int,
    loss: Callable[[Embedded], Tensor],
) -> Tensor:
    """Leave the gradients of `loss` in the parameters, and return its value.

    Args:
        module: whose parameters and buffers take part in `embed`.
        embed: the embeddings of items, by number.
        n_items: of the batch.
        at_a_time: items of a part.
        loss: of all embeddings; raises if it is not finite.
    """
    # Generators count their draws in buffers: the second pass has to draw the same.
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        found = joined([embed(part) for part in parts_of(n_items, at_a_time)])
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    leaves = Embedded(_leaf(found.z), None if found.described is None else _leaf(found.described))
    value = loss(leaves)
    torch.autograd.backward(value)
    for part in parts_of(n_items, at_a_time):
        again = embed(part)
        for z, leaf in zip(again.branches, leaves.branches, strict=True):
            if z.requires_grad and leaf.grad is not None:
                # Both branches may share what lies below them.
                torch.autograd.backward(z, leaf.grad[part], retain_graph=z is again.z)
    return value.detach()


def _leaf(z: Tensor) -> Tensor:
    return z.detach().requires_grad_(True)
