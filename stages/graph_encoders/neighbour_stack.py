"""Sums over the neighbours of each node, with or without their relations: what GCN and GIN have in common.

Axes: n nodes, k edges, loops among them where a kind has them, d width.
"""

from abc import ABC
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.edges import sum_by
from permafrost.stages.graph_encoders.pairs import Pairs, pair, paired_sums
from permafrost.stages.graph_encoders.stack import Stack
from permafrost.stages.graph_encoders.stacked_encoder import NeighbourEncoder


@dataclass(frozen=True)
class Neighbours:
    """Along which edges nodes hear of others."""

    source: Int[Tensor, " k"]
    target: Int[Tensor, " k"]
    weights: Float[Tensor, " k"]
    added: Float[Tensor, "k d"] | None
    """The vector of each edge's relation; None where relations are ignored."""
    pairs: Pairs | None
    """Targets with sources, where relations are ignored."""

    def sums(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The weighted sum of what each node hears."""
        weights = self.weights[:, None].to(states.dtype)
        if self.pairs is not None:
            return paired_sums(weights, states, self.pairs)
        assert self.added is not None
        heard = torch.relu(states[self.source] + self.added)
        return sum_by(heard * weights, self.target, len(states))


class NeighbourStack(Stack, ABC):
    """Layers that read `Neighbours`."""

    config: NeighbourEncoder

    def __init__(
        self,
        config: NeighbourEncoder,
        d_nodes: int,
        d_query: int,
        n_relations: int,
        draw: torch.Generator,
    ) -> None:
        super().__init__(config, d_nodes, d_query, draw)
        self.n_relations = n_relations
        self.added = None
        if config.relations == "added":
            # One more for loops.
            self.added = nn.Parameter(torch.randn(n_relations + 1, config.hidden, generator=draw))

    def neighbours(
        self, batch: GraphBatch, source: Tensor, target: Tensor, relation: Tensor, weights: Tensor
    ) -> Neighbours:
        """The edges in the form that sums need."""
        if self.added is not None:
            return Neighbours(source, target, weights, self.added[relation], None)
        n = batch.n_nodes
        return Neighbours(source, target, weights, None, pair(target, source, n, n))
