"""GLOT: a small graph network over the cosine graph of a frozen backbone's tokens.

Source: GLOT (ICLR 2026), sections 3.2-3.3, as its released code runs it. Where text and code
differ we follow the code: no input projection, plain graph attention instead of the concatenating
update of equation 2, and the readout pools the fused vectors, not the input. `jumping="none"` is
in table 6 but not in the code; here it pools the last convolution.
"""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stages.heads.config import GlotHead
from stages.heads.graph_attention import GraphAttention
from stages.heads.pooling import Pooling
from stages.heads.scorer import Readout
from stages.heads.token_graph import build_blocks


class GlotPooling(Pooling):
    """Token graph, K convolutions with ReLU, jumping knowledge D wide, readout of max(128, D // 2).

    Memory beyond the activations: 4 bytes per token pair inside a text (see token_graph), for all
    convolutions together.
    """

    def __init__(self, config: GlotHead, d_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        widths = [d_in] + [config.hidden] * config.n_convs
        self.convs = nn.ModuleList(
            GraphAttention(d_from, d_to, generator) for d_from, d_to in pairwise(widths)
        )
        self.d_out = sum(widths) if config.jumping == "cat" else config.hidden
        self.readout = Readout(self.d_out, max(128, self.d_out // 2), generator)

    def token_vectors(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> list[Float[Tensor, "t _"]]:
        """The fused token vectors u, as blocks of columns."""
        blocks = build_blocks(tokens, offsets, self.config.tau) if len(self.convs) else []
        layers = [tokens]
        for conv in self.convs:
            layers.append(torch.relu_(conv(layers[-1], blocks)))
        match self.config.jumping:
            case "cat":
                return layers
            case "max":
                return [torch.stack(layers[1:]).amax(dim=0)]
            case "mean":
                return [torch.stack(layers[1:]).mean(dim=0)]
            case "none":
                return [layers[-1]]

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return self.readout(self.token_vectors(tokens, offsets), offsets)[0]

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """The readout's softmax weights."""
        return self.readout(self.token_vectors(tokens, offsets), offsets)[1]
