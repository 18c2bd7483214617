"""A linear map of each token alone, in the place of a graph convolution: GLOT without its graph.

Source: GLOT, section D.6 and table 15, where the graph network alone is replaced, so that concatenation and
readout stay: two layers of width 64 at d = 4096 give the 9.2 million parameters printed for the perceptron
(9,191,681; inferred). The released code has another baseline, our head `mlp`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.heads.graph.convolution import Convolution
from permafrost.stages.heads.initialise import linear


class TokenMap(Convolution):
    """h_i = W x_i + b. Has d * h + h parameters, 4 * h fewer than graph attention."""

    def __init__(self, d_in: int, d_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.d_out = d_out
        self.linear = linear(d_in, d_out, generator)

    def forward(self, tokens: Float[Tensor, "t d"], graph: Any) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation."""
        return self.linear(tokens)
