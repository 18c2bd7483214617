"""The files of the attention inside graphs, and how they are read back."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.storage.errors import CorruptDataError

NODES, EDGES = "attention_nodes.parquet", "attention_edges.parquet"
ATTENTION_NODES = pa.schema(
    [
        pa.field("case", pa.int64()),
        pa.field("place", pa.int64()),
        pa.field("item", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("is_right", pa.bool_()),
        pa.field("is_answer", pa.bool_()),
        pa.field("node", pa.int64()),
        pa.field("label", pa.string()),
        pa.field("type", pa.int64()),
        pa.field("attention", pa.float64()),
    ]
)
"""Columns of `attention_nodes.parquet`: the graphs of some test cases, a row per node. `place` is that of the
item in its case, which may have one item twice, such as two equal choices. `is_right` and `is_answer` say of
a choice whether it is the right one and whether the model chose it, of an item with a class whether that is
class 1; of a search the first item is the query, which is neither, and the others are documents: whether one
is relevant, and whether it was found first. `label` is missing for the query node; `type` is 0 for an entity
of the query, 1 for one of the answer, 2 for another node and 3 for the query node; `attention` is what the
node pays to itself in the last layer."""
ATTENTION_EDGES = pa.schema(
    [
        pa.field("case", pa.int64()),
        pa.field("place", pa.int64()),
        pa.field("item", pa.int64()),
        pa.field("source", pa.int64()),
        pa.field("target", pa.int64()),
        pa.field("relation", pa.string()),
        pa.field("attention", pa.float64()),
    ]
)
"""Columns of `attention_edges.parquet`: a row per edge; `source` and `target` are nodes of the item at
`place`. The name of an inverse relation begins with `^`."""


@dataclass(frozen=True)
class GraphAttention:
    """Graphs with the attention in them."""

    nodes: pa.Table
    """Columns of ATTENTION_NODES."""
    edges: pa.Table
    """Columns of ATTENTION_EDGES."""

    def save(self, folder: Path) -> None:
        """Write attention_nodes.parquet and attention_edges.parquet."""
        pq.write_table(self.nodes, folder / NODES)
        pq.write_table(self.edges, folder / EDGES)


def read_graph_attention(folder: Path) -> GraphAttention | None:
    """The attention in a folder of results; None if there is none.

    Raises:
        CorruptDataError: a file cannot be read, lacks a column, or there is only one of both.
    """
    if not (folder / NODES).exists():
        return None
    try:
        nodes, edges = (
            pq.read_table(folder / name, columns=schema.names).cast(schema)
            for name, schema in ((NODES, ATTENTION_NODES), (EDGES, ATTENTION_EDGES))
        )
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptDataError(
            f"{folder} holds no attention in graphs ({error}); delete the artifact and score it again"
        ) from error
    return GraphAttention(nodes, edges)
