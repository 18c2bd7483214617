"""GLOT: a small graph network over the cosine graph of a frozen backbone's tokens.

Source: GLOT (ICLR 2026), sections 3.2-3.3, as its released code runs it. Where text and code
differ we follow the code: torch-geometric's graph attention, GCN and GIN instead of the concatenating
update of equation 2, and the readout pools the fused vectors, not the input. Not in the code, and off
unless asked for: several attention heads, the input projection W_in (section 3.2, table 6), GIN without
batch normalisation, and `jumping="none"` (table 6), which here pools the last convolution. In the code,
and not here under a name of ours: GINE, which its tables do not have.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.config import GlotHead
from permafrost.stages.heads.graph_attention import GraphAttention
from permafrost.stages.heads.graph_convolution import GraphConvolution
from permafrost.stages.heads.graph_isomorphism import GraphIsomorphism, PlainGraphIsomorphism
from permafrost.stages.heads.initialise import projection
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.pyg_conv import PygConv, PygConvolution, PygGraph, pyg_graph
from permafrost.stages.heads.scorer import Readout
from permafrost.stages.heads.token_graph import Graph, build_graph


def _convolution(config: GlotHead, d_in: int, generator: torch.Generator) -> nn.Module:
    match config.conv:
        case PygConv():
            return PygConvolution(config.conv, d_in, config.hidden, generator)
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
        widths = [config.project or d_in]
        self.convs = nn.ModuleList()
        for _ in range(config.n_convs):
            conv = _convolution(config, widths[-1], generator)
            self.convs.append(conv)
            widths.append(conv.d_out if isinstance(conv, PygConvolution) else config.hidden)
        self.d_out = sum(widths) if config.jumping == "cat" else widths[-1]
        self.readout = Readout(self.d_out, max(128, self.d_out // 2), generator)

    def _graph(self, tokens: Tensor, offsets: Tensor, first: Tensor) -> Graph | PygGraph:
        if not len(self.convs):
            return []
        conv, tau = self.config.conv, self.config.tau
        if isinstance(conv, PygConv):
            return pyg_graph(tokens, offsets, tau, first, conv.edges)
        return build_graph(tokens, offsets, tau)

    def token_vectors(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> list[Float[Tensor, "t _"]]:
        """The fused token vectors u, as blocks of columns."""
        layers = [tokens if self.projection is None else self.projection(tokens)]
        graph = self._graph(tokens, offsets, layers[0])
        for conv in self.convs:
            # A library's layer may have kept its output for the backward pass.
            relu = torch.relu if isinstance(conv, PygConvolution) else torch.relu_
            layers.append(relu(conv(layers[-1], graph)))
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
