"""The kind `gcn`: graph convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.heads.graph.conv import Conv

if TYPE_CHECKING:
    import torch

    from permafrost.stages.heads.graph.convolution import Convolution


class GcnConv(Conv):
    """Symmetrically normalised sum over neighbours (table 11)."""

    kind: Literal["gcn"] = "gcn"

    def build(
        self, d_in: int, hidden: int, generator: torch.Generator, *, tau: float, heads: int
    ) -> Convolution:
        """See `GraphConvolution`."""
        from permafrost.stages.heads.graph.graph_convolution import GraphConvolution

        return GraphConvolution(d_in, hidden, generator)
