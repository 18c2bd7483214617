"""GLOT: a small graph network over the cosine graph of a frozen backbone's tokens.

Source: GLOT (ICLR 2026), section 3.2, as in its released code. Where paper and code differ we follow
the code: torch-geometric's graph attention, GCN and GIN instead of the concatenating update of equation 2,
and the readout pools the fused vectors, not the input. Not in the code, and off by default: several attention
heads, the input projection W_in (section 3.2, table 6), GIN without batch normalisation, and `jumping="none"`
(table 6), which here pools the last convolution. In the code but without a name of its own here: GINE, which
is not in the paper's tables.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.heads.graph.conv import CONVOLUTIONS, ConvConfig
from permafrost.stages.heads.head import Head, Pooling
from permafrost.stages.heads.initialise import projection
from permafrost.stages.heads.scorer import Readout
from permafrost.storage.quoting import quoted


class GlotHead(Head):
    """Graph convolutions over the cosine graph of the tokens, then a scorer (GLOT)."""

    kind: Literal["glot"] = "glot"
    conv: ConvConfig = Field(default_factory=lambda: CONVOLUTIONS.validate({"kind": "gat"}))
    """Graph convolution; the paper's main results use graph attention. `gin` is as in the released code: an
    MLP with batch normalisation, and tokens are their own neighbours. `gin_plain` has neither. Any other of
    torch-geometric's can be given by name."""
    n_convs: int = Field(default=2, ge=0, le=MAX_LAYERS)
    """Number of graph convolutions, K in the paper (appendix B: 2)."""
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)
    """Output width of a convolution, if it can be chosen (appendix B: 128; the 8.92M parameters of table 5
    correspond to 64 and K = 1)."""
    tau: float = Field(default=0.6, allow_inf_nan=False)
    """Tokens with a cosine strictly above this are neighbours (appendix B: 0.6). From 1 on no tokens are
    connected, below -1 all are."""
    jumping: Literal["cat", "max", "mean", "none"] = "cat"
    """How the outputs are fused: `cat` concatenates the input and every convolution, `max` and `mean` combine
    the convolutions element-wise, `none` takes the last one."""
    heads: int = Field(default=1, ge=1, le=MAX_WIDTH)
    """Attention heads of graph attention, concatenated; each has width `hidden / heads`."""
    project: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Width to which tokens are projected before the convolutions (W_in of section 3.2); None as in the
    released code. The graph is still built from the raw tokens; `cat` keeps the projected ones."""

    @model_validator(mode="after")
    def _settings_that_fit(self) -> "GlotHead":
        self.conv.require(self.tau, self.heads)
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden is {self.hidden} and heads is {self.heads}; attention heads are "
                "concatenated, so hidden has to be a multiple of heads"
            )
        if self.n_convs == 0 and self.jumping != "cat":
            raise ValueError(
                f"n_convs is 0 and jumping is {quoted(self.jumping)}, which leaves nothing to pool; without "
                "convolutions only jumping 'cat' keeps the input"
            )
        return self

    def build(self, d_in: int, generator: torch.Generator) -> Pooling:
        """See `GlotPooling`."""
        return GlotPooling(self, d_in, generator)

    def require_width(self, d_in: int) -> None:
        """See `build`."""
        if self.n_convs:
            self.conv.require_width(self.project or d_in, self.hidden)


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
