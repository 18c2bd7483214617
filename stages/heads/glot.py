"""GLOT: a small graph network over the cosine graph of a frozen backbone's tokens.

Source: GLOT (ICLR 2026), sections 3.2-3.3, as its released code runs it. Where text and code
differ we follow the code: torch-geometric's graph attention, GCN and GIN instead of the concatenating
update of equation 2, and the readout pools the fused vectors, not the input. Not in the code, and off
unless asked for: several attention heads, the input projection W_in (section 3.2, table 6), GIN without
batch normalisation, and `jumping="none"` (table 6), which here pools the last convolution. In the code,
and not here: GINE, which its tables do not have.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stages.heads.config import GlotHead
from stages.heads.graph_attention import GraphAttention
from stages.heads.graph_convolution import GraphConvolution
from stages.heads.graph_isomorphism import GraphIsomorphism, PlainGraphIsomorphism
from stages.heads.initialise import projection
from stages.heads.pooling import Pooling
from stages.heads.scorer import Readout
from stages.heads.token_graph import build_graph


def _convolution(config: GlotHead, d_in: int, generator: torch.Generator) -> nn.Module:
    match config.conv:
        case "gat":
            return GraphAttention(d_in, config.hidden, generator, config.heads)
        case "gcn":
            return GraphConvolution(d_in, config.hidden, generator)
        case "gin":
            # A cosine of 1 with itself makes a token its own neighbour.
            own = 2 if config.tau < 1 else 1
            return GraphIsomorphism(d_in, config.hidden, generator, own)
        case "gin_plain":
            return PlainGraphIsomorphism(d_in, config.hidden, generator)


class GlotPooling(Pooling):
    """Token graph, K convolutions with ReLU, jumping knowledge D wide, readout of max(128, D // 2).

    With an input projection the graph is still that of the raw tokens, while the convolutions, and
    `cat`, see projected ones.

    Memory beyond the activations: at most 4 bytes per token pair inside a text (see token_graph), for
    all convolutions together, whichever they are.
    """

    def __init__(self, config: GlotHead, d_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.projection = None
        if config.project is not None:
            self.projection = projection(d_in, config.project, generator)
        widths = [config.project or d_in] + [config.hidden] * config.n_convs
        self.convs = nn.ModuleList(_convolution(config, width, generator) for width in widths[:-1])
        self.d_out = sum(widths) if config.jumping == "cat" else config.hidden
        self.readout = Readout(self.d_out, max(128, self.d_out // 2), generator)

    def token_vectors(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> list[Float[Tensor, "t _"]]:
        """The fused token vectors u, as blocks of columns."""
        graph = build_graph(tokens, offsets, self.config.tau) if len(self.convs) else []
        layers = [tokens if self.projection is None else self.projection(tokens)]
        for conv in self.convs:
            layers.append(torch.relu_(conv(layers[-1], graph)))
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
