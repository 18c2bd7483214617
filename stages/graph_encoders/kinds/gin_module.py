"""Graph isomorphism network: layers of an MLP on a node and the sum of its neighbours."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.neighbour_stack import Neighbours, NeighbourStack
from permafrost.stages.graph_encoders.perceptron import Perceptron


class GinModule(NeighbourStack):
    """h_v = W2 GELU(W1 (h_v + sum_s h_s) + b1) + b2 over the edges that arrive at v."""

    def convolutions(self, draw: torch.Generator) -> Iterable[nn.Module]:
        """See `GinLayer`."""
        return [GinLayer(self.d_out, draw) for _ in range(self.config.n_layers)]

    def wiring(self, batch: GraphBatch) -> Neighbours:
        """Edges, without loops."""
        ones = torch.ones_like(batch.source, dtype=batch.features.dtype)
        return self.neighbours(batch, batch.source, batch.target, batch.relation, ones)


class GinLayer(nn.Module):
    """An MLP of a node and its sum."""

    def __init__(self, d: int, draw: torch.Generator) -> None:
        super().__init__()
        self.perceptron = Perceptron(d, d, draw)

    def forward(self, states: Float[Tensor, "n d"], neighbours: Neighbours) -> Float[Tensor, "n d"]:
        """New vectors, before any further activation."""
        return self.perceptron(states + neighbours.sums(states))
