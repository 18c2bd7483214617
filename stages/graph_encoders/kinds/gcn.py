"""Graph convolution (GCN, arXiv:1609.02907); without relations equal to torch-geometric's GCNConv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.graph_encoders.stacked_encoder import NeighbourEncoder

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import GraphModule


class GcnEncoder(NeighbourEncoder):
    """Symmetrically normalised sums over neighbours (table 6 of GT2VEC)."""

    kind: Literal["gcn"] = "gcn"

    def build(
        self, d_nodes: int, d_query: int, n_relations: int, draw: torch.Generator
    ) -> GraphModule:
        """See `GcnModule`."""
        from permafrost.stages.graph_encoders.kinds.gcn_module import GcnModule

        return GcnModule(self, d_nodes, d_query, n_relations, draw)
