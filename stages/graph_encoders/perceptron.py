"""The MLP of two layers that the parts of a graph-text model have in common, and its batch normalisation."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from permafrost.stages.graph_encoders.draws import dropout
from permafrost.stages.heads.initialise import linear


class Perceptron(nn.Module):
    """W2 dropout(GELU(norm(W1 x + b1))) + b2, with a hidden layer as wide as the output."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        draw: torch.Generator,
        *,
        p: float = 0.0,
        norm: Literal["none", "batch"] = "none",
    ) -> None:
        super().__init__()
        self.p = p
        self.first = linear(d_in, d_out, draw)
        self.norm = CountedBatchNorm(d_out) if norm == "batch" else None
        self.second = linear(d_out, d_out, draw)

    def forward(
        self,
        rows: Float[Tensor, "n d_in"],
        counts: Int[Tensor, " n"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n d_out"]:
        """New rows.

        Args:
            rows: old ones.
            counts: how often each counts in batch normalisation.
            generator: of dropout; None for none.
        """
        hidden = self.first(rows)
        if self.norm is not None:
            assert counts is not None
            hidden = self.norm(hidden, counts)
        return self.second(dropout(functional.gelu(hidden), self.p, generator))


class CountedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of rows of which each stands for several equal ones, or for none.

    A batch of a single row, which has no variance, is normalised by the running statistics, also in training.
    """

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] # counts have no default
        self, input: Float[Tensor, "n d"], counts: Int[Tensor, " n"]
    ) -> Float[Tensor, "n d"]:
        """Normalised rows."""
        mean, var = self.running_mean, self.running_var
        assert mean is not None
        assert var is not None
        assert self.momentum is not None
        n_rows = int(counts.sum())
        if self.training and n_rows > 1:
            rows = input.to(mean.dtype)
            shares = counts[:, None].to(mean.dtype) / n_rows
            batch_mean = (shares * rows).sum(dim=0)
            batch_var = (shares * (rows - batch_mean).square()).sum(dim=0)
            with torch.no_grad():
                mean.lerp_(batch_mean, self.momentum)
                var.lerp_(batch_var * n_rows / (n_rows - 1), self.momentum)
            mean, var = batch_mean, batch_var
        scale = (var + self.eps).rsqrt() * self.weight
        return (input - mean) * scale + self.bias
