"""GLOT: a small graph network over the cosine graph of a frozen backbone's tokens.

Source: GLOT (ICLR 2026), section 3.2, as in its released code. Where paper and code differ we follow
the code: torch-geometric's graph attention, GCN and GIN instead of the concatenating update of equation 2,
and the readout pools the fused vectors, not the input. Not in the code, and off by default: several attention
heads, the input projection W_in (section 3.2, table 6), GIN without batch normalisation, and `jumping="none"`
(table 6), which here pools the last convolution. In the code but without a name of its own here: GINE, which
is not in the paper's tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.heads.graph.conv import CONVOLUTIONS, ConvConfig
from permafrost.stages.heads.head import Head
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.pooling import Pooling


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
    def _settings_that_fit(self) -> GlotHead:
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
        from permafrost.stages.heads.glot_pooling import GlotPooling

        return GlotPooling(self, d_in, generator)

    def require_width(self, d_in: int) -> None:
        """See `build`."""
        if self.n_convs:
            self.conv.require_width(self.project or d_in, self.hidden)
