"""Batch normalisation over tokens, as GLOT's released code has it, that of texts of any length together.

The statistics are those of all tokens of a batch in training, and running ones in evaluation. Where a batch
in training is a single token, which has no variance, we take the running ones; the released code stops.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


def normalised(norm: nn.BatchNorm1d, rows: Float[Tensor, "t h"]) -> Float[Tensor, "t h"]:
    """`rows` with the mean and the variance that `norm` has learnt for each column."""
    if len(rows) > 1:
        return norm(rows)
    return functional.batch_norm(
        rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )
