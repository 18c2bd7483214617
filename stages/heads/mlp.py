"""An MLP on every token, then the mean: GLOT without a graph and without a scorer.

Source: the MLP baseline of GLOT's table 15, as in its released code: torch-geometric's MLP of widths
d, h, ..., h with batch normalisation before the ReLU, and a plain mean over tokens (the paper calls it
adaptive scoring; the scores are constant).
Axes: t tokens of all texts, n texts, d input width, h width.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.heads.head import Head
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.pooling import Pooling


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
        from permafrost.stages.heads.mlp_pooling import MlpPooling

        return MlpPooling(self, d_in, generator)


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
