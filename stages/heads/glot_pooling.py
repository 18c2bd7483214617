"""The module of the head `glot`: token graph, convolutions, jumping knowledge, readout; see `glot`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.glot import GlotHead
from permafrost.stages.heads.initialise import projection
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.readout import Readout


class GlotPooling(Pooling):
    """Token graph, K convolutions with ReLU, jumping knowledge of width D, a readout of max(128, D // 2).

    With an input projection the graph is still built from the raw tokens, while the convolutions and `cat`
    read projected ones.

    Memory besides the activations: at most 4 bytes per pair of tokens within a text (see token_graph), for
    all convolutions together.
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
            conv = config.conv.build(
                widths[-1], config.hidden, generator, tau=config.tau, heads=config.heads
            )
            self.convs.append(conv)
            widths.append(conv.d_out)
        self.d_out = sum(widths) if config.jumping == "cat" else widths[-1]
        self.readout = Readout(self.d_out, max(128, self.d_out // 2), generator)

    def token_vectors(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> list[Float[Tensor, "t _"]]:
        """The fused token vectors u, as blocks of columns."""
        layers = [tokens if self.projection is None else self.projection(tokens)]
        if len(self.convs):
            graph = self.config.conv.graph(tokens, offsets, self.config.tau, layers[0])
            relu = torch.relu if self.config.conv.keeps_output else torch.relu_
            for conv in self.convs:
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
