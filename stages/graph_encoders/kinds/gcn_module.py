"""Graph convolution: layers of sums over neighbours, normalised by both degrees."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.neighbour_stack import Neighbours, NeighbourStack
from permafrost.stages.heads.initialise import linear


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
