"""Edges of a batch with a loop at every node, and softmaxes over the edges of a node.

Axes: n nodes, e edges, k edges and loops (e + n), d width, a attention heads.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from permafrost.stages.graph_encoders.batch import N_NODE_TYPES, GraphBatch


@dataclass(frozen=True)
class LoopedEdges:
    """The edges of a batch, in its order, and then a loop at every node.

    What is computed from the relation and the types of both ends alone is computed once for each such triple
    that occurs, of which there are far fewer than edges.
    """

    source: Int[Tensor, " k"]
    target: Int[Tensor, " k"]
    triple: Int[Tensor, " k"]
    """Which of `triples` each has."""
    triples: Int[Tensor, "t 3"]
    """Relation, type of the source, type of the target; a loop has the relation `n_relations`."""
    counts: Int[Tensor, " t"]
    """Edges and loops of each triple; loops at padding are not counted."""


def looped(batch: GraphBatch, n_relations: int) -> LoopedEdges:
    """The edges of a batch and its loops."""
    every = torch.arange(batch.n_nodes, device=batch.source.device)
    source, target = torch.cat([batch.source, every]), torch.cat([batch.target, every])
    relation = torch.cat([batch.relation, torch.full_like(every, n_relations)])
    types = batch.node_type.long()
    ends = types[source] * N_NODE_TYPES + types[target]
    code, triple = torch.unique(relation * N_NODE_TYPES**2 + ends, return_inverse=True)
    triples = torch.stack(
        [code // N_NODE_TYPES**2, code // N_NODE_TYPES % N_NODE_TYPES, code % N_NODE_TYPES], dim=1
    )
    counted = (batch.graph_of_node >= 0)[source].long()
    counts = torch.zeros_like(code).index_add(0, triple, counted)
    return LoopedEdges(source, target, triple, triples, counts)


def softmax_by(
    scores: Float[Tensor, "k a"], group: Int[Tensor, " k"], n_groups: int
) -> Float[Tensor, "k a"]:
    """Softmax over the edges of each group, in float32 at least."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    index = group[:, None].expand_as(scores)
    lowest = scores.new_full((n_groups, scores.shape[1]), -torch.inf)
    highest = lowest.scatter_reduce(0, index, scores.detach(), "amax")
    powers = (scores - highest.index_select(0, group)).exp()
    return powers / sum_by(powers, group, n_groups).index_select(0, group)


def sum_by(
    rows: Float[Tensor, "k d"], group: Int[Tensor, " k"], n_groups: int
) -> Float[Tensor, "g d"]:
    """The sum of the rows of each group; 0 where there are none."""
    return rows.new_zeros(n_groups, rows.shape[1]).index_add(0, group, rows)
