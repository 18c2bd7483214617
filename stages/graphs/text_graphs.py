"""Many small graphs in flat columns: nodes one after the other, then edges one after the other."""

from dataclasses import dataclass, fields
from operator import index
from typing import SupportsIndex

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.stages.graphs.node_types import NODE_TYPES, QUERY_NODE, n_relations
from permafrost.storage.ragged import offsets_of

NODES = pa.schema(
    [
        pa.field("graph", pa.int64(), nullable=False),
        pa.field("node", pa.int32(), nullable=False),
        pa.field("label", pa.int64()),
        pa.field("type", pa.int8(), nullable=False),
        pa.field("relevance", pa.float32(), nullable=False),
    ]
)
"""`node` counts from 0 in each graph; `label` is a row of the labels, missing for the query node."""
EDGES = pa.schema(
    [
        pa.field("graph", pa.int64(), nullable=False),
        pa.field("source", pa.int32(), nullable=False),
        pa.field("target", pa.int32(), nullable=False),
        pa.field("relation", pa.int32(), nullable=False),
    ]
)
"""`source` and `target` are values of `node` in the same graph."""
LARGEST_RELEVANCE = float(np.finfo(np.float32).max)
"""Of a node, as an absolute value."""


@dataclass(frozen=True, eq=False)
class TextGraphs:
    """Graphs whose nodes are labelled by texts; g graphs, n nodes and e edges of all of them together."""

    node_offsets: NDArray[np.int64]
    """`[g + 1]`: the nodes of graph i are rows `node_offsets[i]` to `node_offsets[i + 1]`."""
    node_label: NDArray[np.int64]
    """`[n]`: row of the labels; -1 for the query node, which is the first node of every graph."""
    node_type: NDArray[np.int8]
    """`[n]`: see `node_types`."""
    node_relevance: NDArray[np.float32]
    """`[n]`: how relevant a node is to its query, as the corpus scores it; 0 where nothing was scored."""
    edge_offsets: NDArray[np.int64]
    """`[g + 1]`: likewise for edges."""
    edge_source: NDArray[np.int32]
    """`[e]`: number of the node in its graph, 0 for the query node."""
    edge_target: NDArray[np.int32]
    """`[e]`: likewise."""
    edge_relation: NDArray[np.int32]
    """`[e]`: with R relations of the corpus' own, r < R is one of them, R leads from the query node to a
    query entity, R + 1 from the query node to an answer entity, and r + R + 2 is the inverse of r."""
    are_scored: bool
    """Whether nodes have a relevance, be it 0; also if there are none but query nodes."""

    def __len__(self) -> int:
        """Number of graphs."""
        return len(self.node_offsets) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TextGraphs):
            return NotImplemented
        return self.are_scored == other.are_scored and all(
            np.array_equal(a, b) for a, b in zip(self.columns(), other.columns(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((len(self), len(self.node_label), len(self.edge_source)))

    def columns(self) -> tuple[NDArray[np.generic], ...]:
        """Every column, in the order of the fields."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.name != "are_scored")

    def nodes_of(self, graph: SupportsIndex) -> slice:
        """The rows of a graph's nodes."""
        return _rows_of(self.node_offsets, graph)

    def edges_of(self, graph: SupportsIndex) -> slice:
        """The rows of a graph's edges."""
        return _rows_of(self.edge_offsets, graph)

    def require_sound(self, n_labels: int, n_raw_relations: int) -> None:
        """Check that every number is in range.

        Args:
            n_labels: number of labels.
            n_raw_relations: relations of the corpus' own.

        Raises:
            ValueError: a graph does not begin with its only query node, or an edge, label, type or relation
                is out of range.
        """
        starts, sizes = self.node_offsets[:-1], np.diff(self.node_offsets)
        is_query = self.node_type == QUERY_NODE
        if (sizes < 1).any() or is_query.sum() != len(self) or not is_query[starts].all():
            raise ValueError("a graph does not begin with its only query node")
        if not np.array_equal(self.node_label == -1, is_query) or not _within(
            self.node_label, -1, n_labels
        ):
            raise ValueError(f"a node has no label, or one that is not among the {n_labels}")
        if not _within(self.node_type, 0, len(NODE_TYPES)):
            raise ValueError(f"a node has a type that is not among the {len(NODE_TYPES)}")
        if not np.isfinite(self.node_relevance).all():
            raise ValueError("a node has a relevance that is not a finite number")
        limits = np.repeat(sizes, np.diff(self.edge_offsets))
        for ends in (self.edge_source, self.edge_target):
            if ((ends < 0) | (ends >= limits)).any():
                raise ValueError("an edge leads to a node that its graph does not have")
        if not _within(self.edge_relation, 0, n_relations(n_raw_relations)):
            raise ValueError(f"a relation is not among the {n_relations(n_raw_relations)}")

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Nodes and edges as tables with the columns of `NODES` and `EDGES`."""
        label = pc.if_else(
            pc.equal(self.node_label, -1), pa.scalar(None, pa.int64()), self.node_label
        )
        return (
            pa.table(
                [
                    _graphs(self.node_offsets),
                    _numbers(self.node_offsets).astype(np.int32),
                    label,
                    self.node_type,
                    self.node_relevance,
                ],
                schema=NODES,
            ),
            pa.table(
                [
                    _graphs(self.edge_offsets),
                    self.edge_source,
                    self.edge_target,
                    self.edge_relation,
                ],
                schema=EDGES,
            ),
        )

    @classmethod
    def of_tables(
        cls, n_graphs: int, nodes: pa.Table, edges: pa.Table, *, are_scored: bool
    ) -> "TextGraphs":
        """What `tables` was made from.

        Raises:
            ValueError: the rows of a graph do not stand together in order.
        """
        node_offsets, edge_offsets = (_offsets(n_graphs, table) for table in (nodes, edges))
        if not np.array_equal(nodes.column("node").to_numpy(), _numbers(node_offsets)):
            raise ValueError("the nodes of a graph are not numbered from 0")
        return cls(
            node_offsets,
            nodes.column("label").fill_null(-1).to_numpy(),
            nodes.column("type").to_numpy(),
            nodes.column("relevance").to_numpy(),
            edge_offsets,
            *(edges.column(name).to_numpy() for name in ("source", "target", "relation")),
            are_scored=are_scored,
        )


def _rows_of(offsets: NDArray[np.int64], graph: SupportsIndex) -> slice:
    at = index(graph)
    return slice(int(offsets[at]), int(offsets[at + 1]))


def _within(values: NDArray[np.integer], low: int, end: int) -> bool:
    return bool(((values >= low) & (values < end)).all())


def _graphs(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The graph of each row."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _numbers(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each row in its graph."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _offsets(n_graphs: int, table: pa.Table) -> NDArray[np.int64]:
    graphs = table.column("graph").to_numpy()
    if (np.diff(graphs) < 0).any() or not _within(graphs, 0, n_graphs):
        raise ValueError(f"the rows of {n_graphs} graphs do not stand together, graph by graph")
    return offsets_of(np.bincount(graphs, minlength=n_graphs))
