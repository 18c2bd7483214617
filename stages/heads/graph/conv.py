"""What a convolution of GLOT is: a config that makes layers on the token graph, and the graph they run on."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.heads.graph.token_graph import build_graph
from permafrost.stages.kinds import Category, Kind
from permafrost.storage.quoting import quoted


class Convolution(nn.Module, ABC):
    """New vectors of tokens from those of their neighbours."""

    d_out: int
    """Width of a new vector."""

    @abstractmethod
    def forward(self, tokens: Float[Tensor, "t d"], graph: Any) -> Float[Tensor, "t h"]:
        """New vectors of the tokens, before any activation.

        Args:
            tokens: of all texts.
            graph: as `Conv.graph` made it.
        """


class Conv(Kind, ABC):
    """One kind of graph convolution, `conv` of a GLOT head."""

    splits_heads: ClassVar[bool] = False
    """Whether it can have several attention heads."""
    keeps_output: ClassVar[bool] = False
    """Whether a layer may read its output again in the backward pass, so that it must stay as it is."""

    @abstractmethod
    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """A layer for tokens `d_in` wide, its weights drawn from `generator` (on the CPU).

        Args:
            d_in: width of a token.
            hidden: width of the result, where the convolution has one to choose.
            generator: draws the weights.
            tau: of the graph.
            heads: attention heads; 1 unless the kind splits them.

        Raises:
            InputError: the settings do not go with these widths.
        """

    def graph(
        self,
        tokens: Float[Tensor, "t d"],
        offsets: Int[Tensor, " n_plus_1"],
        tau: float,
        first: Float[Tensor, "t _"],
    ) -> Any:
        """The token graphs of a batch, for all layers; without gradient.

        Args:
            tokens: whose cosines decide.
            offsets: where texts start.
            tau: cosines strictly above it connect.
            first: rows before the first convolution.
        """
        return build_graph(tokens, offsets, tau)

    def require(self, tau: float, heads: int) -> None:
        """Check the settings of the head around it.

        Raises:
            ValueError: they do not go with this convolution.
        """
        if heads > 1 and not self.splits_heads:
            raise ValueError(
                f"heads is {heads} and conv is {quoted(self.kind)}, which has no attention heads; "
                "leave heads at 1 or use conv 'gat'"
            )

    def require_width(self, d_in: int, hidden: int) -> None:
        """Check that it goes with these widths, where that depends on its settings.

        Raises:
            InputError: as `build`.
        """
        return


CONVOLUTIONS = Category("convolution", Conv, "permafrost.stages.heads.graph")
ConvConfig = Annotated[Conv, CONVOLUTIONS.field_or_name()]
"""Any convolution: by its name alone, `gat`, or with fields, `{kind: pyg, name: GATv2Conv}`."""
