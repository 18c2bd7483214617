"""Batch normalisation over the tokens of all texts together, as in GLOT's released code.

In training the statistics are over all tokens of a batch, in evaluation they are the running ones. For a
training batch of a single token, which has no variance, we use the running ones; the released code fails.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


def normalised(norm: nn.BatchNorm1d, rows: Float[Tensor, "t h"]) -> Float[Tensor, "t h"]:
    """Apply `norm`; a single row is normalised by the running statistics, also in training."""
    if len(rows) > 1:
        return norm(rows)
    return functional.batch_norm(
        rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
