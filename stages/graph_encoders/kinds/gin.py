"""Graph isomorphism network (GIN, arXiv:1810.00826), equal to torch-geometric's GINConv and GINEConv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.graph_encoders.stacked_encoder import NeighbourEncoder

if TYPE_CHECKING:
    import torch

    from permafrost.stages.graph_encoders.module import GraphModule


class GinEncoder(NeighbourEncoder):
    """Sums over neighbours through an MLP (table 6 of GT2VEC); eps is 0, and nothing is normalised."""

    kind: Literal["gin"] = "gin"

    def build(
        self, d_nodes: int, d_query: int, n_relations: int, draw: torch.Generator
    ) -> GraphModule:
        """See `GinModule`."""
        from permafrost.stages.graph_encoders.kinds.gin_module import GinModule

        return GinModule(self, d_nodes, d_query, n_relations, draw)
