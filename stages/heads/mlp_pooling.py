"""The module of the head `mlp`: an MLP on every token, then the mean; see `mlp` for its source.

Axes: t tokens of all texts, n texts, d input width, h width.
"""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.batch_normalisation import normalised
from permafrost.stages.heads.initialise import linear
from permafrost.stages.heads.mlp import MlpHead
from permafrost.stages.heads.plain_poolings import MeanPooling
from permafrost.stages.heads.pooling import Pooling


class MlpPooling(Pooling):
    """Linear, batch normalisation, ReLU, ..., Linear on each token, then the mean over each text.

    Vectors depend on `train()` and `eval()`, and in training on the batch. The last layer is applied after
    the mean, with which it commutes. Memory: two tensors `[t, h]` per layer except the last.
    """

    def __init__(self, config: MlpHead, d_in: int, generator: torch.Generator) -> None:
        super().__init__()
        widths = [d_in] + [config.width] * config.n_layers
        self.linears = nn.ModuleList(linear(*pair, generator) for pair in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:-1])
        self.mean = MeanPooling(widths[-2])
        self.d_out = config.width

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        *first, last = self.linears
        rows = tokens
        for layer, norm in zip(first, self.norms, strict=True):
            assert isinstance(norm, nn.BatchNorm1d)
            rows = torch.relu_(normalised(norm, layer(rows)))
        return last(self.mean(rows, offsets))

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """1 / n for each of a text's n tokens."""
        return self.mean.token_weights(tokens, offsets)
