"""The kinds `gin` and `gin_plain`: graph isomorphism convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.heads.graph.conv import Conv

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.graph.convolution import Convolution


class GinConv(Conv):
    """GIN as released: with batch normalisation, and tokens as their own neighbours if tau is below 1."""

    kind: Literal["gin"] = "gin"

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `GraphIsomorphism`."""
        from permafrost.stages.heads.graph.graph_isomorphism import GraphIsomorphism

        # A cosine of 1 with itself makes a token its own neighbour.
        return GraphIsomorphism(d_in, hidden, generator, 2 if tau < 1 else 1)


class PlainGinConv(Conv):
    """GIN without batch normalisation, in which tokens are not their own neighbours."""

    kind: Literal["gin_plain"] = "gin_plain"

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `PlainGraphIsomorphism`."""
        from permafrost.stages.heads.graph.graph_isomorphism import PlainGraphIsomorphism

        return PlainGraphIsomorphism(d_in, hidden, generator)
