"""The base classes of GLOT's convolutions: a config that builds layers on the token graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from jaxtyping import Float, Int

from permafrost.stages.kinds import Category, Kind
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from permafrost.stages.heads.graph.convolution import Convolution


class Conv(Kind, ABC):
    """A kind of graph convolution, the field `conv` of a GLOT head."""

    splits_heads: ClassVar[bool] = False
    """Whether it supports several attention heads."""
    keeps_output: ClassVar[bool] = False
    """Whether a layer may need its output in the backward pass, so that it must not be changed in place."""

    @abstractmethod
    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """Build a layer, with weights drawn from `generator` (on the CPU).

        Args:
            d_in: input width.
            hidden: output width, if the convolution can choose it.
            generator: draws the weights.
            tau: threshold of the graph.
            heads: attention heads; 1 unless `splits_heads`.

        Raises:
            InputError: the settings do not fit these widths.
        """

    def graph(
        self,
        tokens: Float[Tensor, "t d"],
        offsets: Int[Tensor, " n_plus_1"],
        tau: float,
        first: Float[Tensor, "t _"],
    ) -> Any:
        """The token graphs of a batch, shared by all layers; without gradient.

        Args:
            tokens: whose cosines define the graph.
            offsets: where texts start.
            tau: tokens with a cosine strictly above it are connected.
            first: rows before the first convolution.
        """
        from permafrost.stages.heads.graph.token_graph import build_graph

        return build_graph(tokens, offsets, tau)

    def require(self, tau: float, heads: int) -> None:
        """Check the settings of the head that contains it.

        Raises:
            ValueError: they do not fit this convolution.
        """
        if heads > 1 and not self.splits_heads:
            raise ValueError(
                f"heads is {heads} and conv is {quoted(self.kind)}, which has no attention heads; "
                "leave heads at 1 or use conv 'gat'"
            )

    def require_width(self, d_in: int, hidden: int) -> None:
        """Check that the settings fit these widths, if that depends on them.

        Raises:
            InputError: as `build`.
        """
        return


CONVOLUTIONS = Category("convolution", Conv, "permafrost.stages.heads.graph")
ConvConfig = Annotated[Conv, CONVOLUTIONS.field_or_name()]
"""Any convolution: as a name alone, `gat`, or with fields, `{kind: pyg, name: GATv2Conv}`."""
