"""Small random graphs of all sorts: with several relations between two nodes, isolated nodes, no edges."""

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from permafrost.stages.graph_encoders.batch import PADDING, QUERY_NODE, GraphBatch

D_NODES, D_QUERY, D_TEXT, N_RELATIONS = 6, 5, 7, 8
SIZES = (5, 1, 4, 3)
"""Nodes of each graph; the second is a query node alone, the last has no edges."""


def make_graphs(
    sizes: Sequence[int] = SIZES, seed: int = 0, dtype: torch.dtype = torch.float64
) -> GraphBatch:
    """A batch; the query node is the first of each graph, the last graph has no edges."""
    draw = torch.Generator().manual_seed(seed)

    def rows(n: int, width: int) -> Tensor:
        return torch.randn(n, width, generator=draw, dtype=dtype)

    def numbers(n: int, high: int) -> Tensor:
        return torch.randint(high, (n,), generator=draw)

    starts = torch.tensor([0, *sizes]).cumsum(0)
    pairs = [
        at + torch.stack([numbers(3 * n, n), numbers(3 * n, n)])
        for at, n in zip(starts[:-1], sizes[:-1], strict=False)
        if n > 1
    ]
    ends = torch.cat([torch.zeros(2, 0, dtype=torch.int64), *pairs], dim=1)
    ends = ends[:, ends[0] != ends[1]]
    n_nodes = int(starts[-1])
    types = numbers(n_nodes, 3)
    types[starts[:-1]] = QUERY_NODE
    return GraphBatch(
        features=rows(n_nodes, D_NODES),
        query_features=rows(len(sizes), D_QUERY),
        node_type=types,
        source=ends[0],
        target=ends[1],
        relation=numbers(ends.shape[1], N_RELATIONS),
        graph_of_node=torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)),
        query_node=starts[:-1],
        text_features=rows(len(sizes), D_TEXT),
        relevance=torch.rand(n_nodes, generator=draw, dtype=dtype),
    )


def graph_alone(batch: GraphBatch, graph: int) -> GraphBatch:
    """One graph of a batch."""
    assert batch.relevance is not None
    kept = (batch.graph_of_node == graph).nonzero()[:, 0]
    row = torch.full((batch.n_nodes,), -1)
    row[kept] = torch.arange(len(kept))
    own = row[batch.source] >= 0
    return GraphBatch(
        features=batch.features[kept],
        query_features=batch.query_features[graph : graph + 1],
        node_type=batch.node_type[kept],
        source=row[batch.source[own]],
        target=row[batch.target[own]],
        relation=batch.relation[own],
        graph_of_node=torch.zeros(len(kept), dtype=torch.int64),
        query_node=row[batch.query_node[graph : graph + 1]],
        text_features=batch.text_features[graph : graph + 1],
        relevance=batch.relevance[kept],
    )


def no_graphs(batch: GraphBatch) -> GraphBatch:
    """A batch of the same widths without graphs."""
    values = ((field.name, getattr(batch, field.name)) for field in fields(batch))
    return GraphBatch(**{name: value[:0] for name, value in values})


def reordered(batch: GraphBatch, graphs: Tensor) -> GraphBatch:
    """The same graphs in the order `graphs`; rows stay where they are."""
    return replace(
        batch,
        graph_of_node=graphs.argsort()[batch.graph_of_node],
        query_node=batch.query_node[graphs],
        query_features=batch.query_features[graphs],
        text_features=batch.text_features[graphs],
    )


def relabelled(batch: GraphBatch, nodes: Tensor, edges: Tensor) -> GraphBatch:
    """The same graphs with rows in the order `nodes` and edges in the order `edges`."""
    assert batch.relevance is not None
    row = nodes.argsort()
    return replace(
        batch,
        features=batch.features[nodes],
        node_type=batch.node_type[nodes],
        source=row[batch.source][edges],
        target=row[batch.target][edges],
        relation=batch.relation[edges],
        graph_of_node=batch.graph_of_node[nodes],
        query_node=row[batch.query_node],
        relevance=batch.relevance[nodes],
    )


def padded(batch: GraphBatch, n: int) -> GraphBatch:
    """The same with `n` more rows that belong to no graph, full of large numbers."""
    assert batch.relevance is not None
    return replace(
        batch,
        features=torch.cat([batch.features, batch.features.new_full((n, D_NODES), 1e3)]),
        node_type=torch.cat([batch.node_type, torch.zeros(n, dtype=torch.int64)]),
        graph_of_node=torch.cat([batch.graph_of_node, torch.full((n,), PADDING)]),
        relevance=torch.cat([batch.relevance, batch.relevance.new_full((n,), 9.0)]),
    )
