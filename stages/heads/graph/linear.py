"""The kind `linear`: a map of each token alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from jaxtyping import Float, Int

from permafrost.stages.heads.graph.conv import Conv

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from permafrost.stages.heads.graph.convolution import Convolution


class LinearConv(Conv):
    """No neighbours: a linear map of each token (table 15)."""

    kind: Literal["linear"] = "linear"

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `TokenMap`."""
        from permafrost.stages.heads.graph.no_graph import TokenMap

        return TokenMap(d_in, hidden, generator)

    def graph(
        self,
        tokens: Float[Tensor, "t d"],
        offsets: Int[Tensor, " n_plus_1"],
        tau: float,
        first: Float[Tensor, "t _"],
    ) -> None:
        """None is needed."""
        return
