"""Graph convolution (GCN, arXiv:1609.02907); without relations equal to torch-geometric's GCNConv."""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.encoder import GraphModule
from permafrost.stages.graph_encoders.neighbour_stack import (
    NeighbourEncoder,
    Neighbours,
    NeighbourStack,
)
from permafrost.stages.heads.initialise import linear


class GcnEncoder(NeighbourEncoder):
    """Symmetrically normalised sums over neighbours (table 6 of GT2VEC)."""

    kind: Literal["gcn"] = "gcn"

    def build(
        self, d_nodes: int, d_query: int, n_relations: int, draw: torch.Generator
    ) -> GraphModule:
        """See `GcnModule`."""
        return GcnModule(self, d_nodes, d_query, n_relations, draw)


class GcnModule(NeighbourStack):
    """h_v = W sum_s h_s / sqrt(n_s n_v) + b over the n_v edges that arrive at v, its loop among them.

    Several edges between two nodes count as often.
    """

    def convolutions(self, draw: torch.Generator) -> Iterable[nn.Module]:
        """See `GcnLayer`."""
        return [GcnLayer(self.d_out, draw) for _ in range(self.config.n_layers)]

    def wiring(self, batch: GraphBatch) -> Neighbours:
        """Edges and loops."""
        every = torch.arange(batch.n_nodes, device=batch.source.device)
        source, target = torch.cat([batch.source, every]), torch.cat([batch.target, every])
        relation = torch.cat([batch.relation, torch.full_like(every, self.n_relations)])
        scale = torch.bincount(target, minlength=batch.n_nodes).to(batch.features.dtype).rsqrt()
        return self.neighbours(batch, source, target, relation, scale[source] * scale[target])


class GcnLayer(nn.Module):
    """A linear map of the sums."""

    def __init__(self, d: int, draw: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d, d, draw)

    def forward(self, states: Float[Tensor, "n d"], neighbours: Neighbours) -> Float[Tensor, "n d"]:
        """New vectors, before any activation."""
        return self.linear(neighbours.sums(states))
