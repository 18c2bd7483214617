"""An MLP on every token, then the mean: GLOT without a graph and without a scorer.

Source: the MLP baseline of GLOT's table 15, as in its released code: torch-geometric's MLP of widths
d, h, ..., h with batch normalisation before the ReLU, and a plain mean over tokens (the paper calls it
adaptive scoring; the scores are constant).
Axes: t tokens of all texts, n texts, d input width, h width.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.heads.batch_normalisation import normalised
from permafrost.stages.heads.head import Head, Pooling
from permafrost.stages.heads.initialise import linear
from permafrost.stages.heads.poolings import MeanPooling
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class MlpHead(Head):
    """An MLP on every token, then the mean (the baseline of GLOT's table 15)."""

    kind: Literal["mlp"] = "mlp"
    hidden: (
        Annotated[int, Field(ge=1, le=MAX_WIDTH)] | Annotated[str, Field(pattern=r"^match \S.*$")]
    ) = 128
    """Width of every layer, and of the pooled vector. In an experiment `match NAME` is the width at which the
    head is closest in trained parameters to that of the method NAME, classifiers aside."""
    n_layers: int = Field(default=2, ge=1, le=MAX_LAYERS)
    """Number of linear layers, with batch normalisation and ReLU in between."""

    @property
    def width(self) -> int:
        """`hidden` as a number.

        Raises:
            InputError: it still names another method.
        """
        if isinstance(self.hidden, str):
            raise InputError(
                f"hidden is {quoted(self.hidden)}, which names a method of an experiment file and is "
                "resolved only for the head of a method; give a number here"
            )
        return self.hidden

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See `MlpPooling`."""
        return MlpPooling(self, d_in, generator)


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


def mlp_parameters(d_in: int, hidden: int, n_layers: int) -> int:
    """Number of trainable parameters of such a head: weights, biases, and two per normalised column."""
    return hidden * (d_in + 1) + (n_layers - 1) * hidden * (hidden + 3)


def matched_hidden(d_in: int, n_parameters: int, n_layers: int) -> int:
    """The width at which the head is closest to a number of parameters ("MLP of matched size").

    Args:
        d_in: width of the tokens.
        n_parameters: of the head to match, without its classifier; see `Pooling.n_parameters`.
        n_layers: of the `MlpHead`.

    Raises:
        InputError: even a width of 1 has more parameters.
    """

    def count(hidden: int) -> int:
        return mlp_parameters(d_in, hidden, n_layers)

    below = bisect_right(range(1, n_parameters + 1), n_parameters, key=count)
    if below == 0:
        raise InputError(
            f"an MLP head of {n_layers} layers on tokens {d_in} wide has at least {count(1)} "
            f"parameters, but {n_parameters} were asked for; match it with a larger head"
        )
    return min(below, below + 1, key=lambda hidden: abs(count(hidden) - n_parameters))
