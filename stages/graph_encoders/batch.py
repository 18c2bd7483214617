"""Graphs of a batch as tensors, which every graph encoder and readout takes.

Nodes of all graphs lie end to end, and edges name rows of that. Axes: g graphs, n nodes, e edges.
"""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

N_NODE_TYPES = 4
"""Types of nodes, as in QA-GNN: entity of the query, entity of the answer, other, query node."""
QUERY_NODE = 3
"""The type of query nodes."""
PADDING = -1
"""`graph_of_node` of a row that belongs to no graph, which fills a batch up to a fixed size: it has no edges,
and changes nothing."""


@dataclass(frozen=True)
class GraphBatch:
    """Graphs with typed nodes and relations, each with one query node, and the text beside each graph."""

    features: Float[Tensor, "n d_nodes"]
    """Of the nodes' labels, from a frozen model; rows of query nodes are not read."""
    query_features: Float[Tensor, "g d_query"]
    """Where the query nodes start from."""
    node_type: Int[Tensor, " n"]
    source: Int[Tensor, " e"]
    """Row of the node that an edge starts from; inverse edges are edges of their own, self loops are not
    among them."""
    target: Int[Tensor, " e"]
    """Row of the node that it leads to."""
    relation: Int[Tensor, " e"]
    """Its relation, below the `n_relations` that the encoder was built for."""
    graph_of_node: Int[Tensor, " n"]
    """Nodes of a graph need not lie together; see `PADDING`."""
    query_node: Int[Tensor, " g"]
    """Row of each graph's query node."""
    text_features: Float[Tensor, "g d_text"]
    """Of the text beside each graph, for the readout."""
    relevance: Float[Tensor, " n"] | None = None
    """How relevant each node was found for the query; None if nodes were not scored, or nobody asked."""

    @property
    def n_nodes(self) -> int:
        """Rows of all graphs, padding included."""
        return len(self.features)

    @property
    def n_graphs(self) -> int:
        """Graphs of the batch."""
        return len(self.query_node)

    @property
    def is_query(self) -> Tensor:
        """Whether a row is a query node, bool `[n]`."""
        rows = torch.zeros_like(self.graph_of_node, dtype=torch.bool)
        return rows.index_fill(0, self.query_node, True)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "GraphBatch":
        """The same elsewhere; with `dtype`, features and relevance in that precision."""
        moved: dict[str, Tensor] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(device, dtype if value.is_floating_point() else None)
        return replace(self, **moved)
