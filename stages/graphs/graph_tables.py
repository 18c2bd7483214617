"""A user's graphs in two tables: one row per node, one row per edge."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.corpus.names import require_columns
from permafrost.stages.corpus.table_files import column_names, read_columns
from permafrost.stages.corpus.text_format import USUAL, TextFormat
from permafrost.stages.corpus.values import checked_texts, ids_of, numbers_of
from permafrost.stages.graphs.collecting import Triple
from permafrost.stages.graphs.node_types import (
    ANSWER_ENTITY,
    NODE_TYPES,
    OTHER,
    QUERY_ENTITY,
    QUERY_NODE,
)
from permafrost.stages.graphs.relation_names import require_free
from permafrost.stages.graphs.text_graphs import LARGEST_RELEVANCE
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

OPTIONAL_COLUMNS = ("type", "relevance")
"""Of a table of nodes."""


@dataclass
class TableGraph:
    """One graph of the tables."""

    number: dict[str, int] = field(default_factory=dict)
    """Of each node by its id, in the order of the table; without the query node."""
    labels: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    relevance: list[float] | None = None
    """None where the table has no such column."""
    triples: list[Triple] = field(default_factory=list)
    """Each once."""
    query_id: str | None = None
    """Id of the node that the tables call the query node."""

    def of_type(self, wanted: int) -> list[int]:
        """The nodes of a type."""
        return [node for node, found in enumerate(self.types) if found == wanted]


def read_graphs(
    nodes: Path,
    edges: Path,
    relations: Sequence[str] | None,
    whose: str = "in 'relations'",
    remedy: str = "add it there",
    formats: Callable[[Path], TextFormat] = lambda path: USUAL,
) -> tuple[dict[str, TableGraph], list[str], int]:
    """Every graph by its id, the names of the relations, and how many triples were there again.

    A node that the table calls a query node is not among a graph's nodes: what its edges lead to is an entity
    of the query, whatever the name of the relation.

    Args:
        nodes: file with the columns graph, node and text, and perhaps type and relevance.
        edges: file with the columns graph, source, target and relation.
        relations: the only ones; None for those of the table, sorted.
        whose: says in messages where the only ones come from.
        remedy: what to do about another one, besides removing the edge.
        formats: how each file is written.

    Raises:
        InputError: a file or column is missing, a text is blank, a node id comes twice in a graph, an edge
            leads to no node, a relation is unknown or not free (`require_free`), a type is unknown, or a
            relevance is no number.
    """
    graphs, how = _read_nodes(nodes, formats(nodes)), formats(edges)
    where, columns = str(edges), ("graph", "source", "target")
    require_columns(
        column_names(edges, how),
        [*columns, "relation"],
        where,
        "A table of edges has the columns graph, source, target and relation, by these names",
    )
    table = read_columns(edges, ["relation"], [], ids=columns, how=how)
    # A graph may have no edges, and so may all.
    relation = table.column("relation")
    named = (
        pc.utf8_trim_whitespace(checked_texts(relation, "relation", where)).to_pylist()
        if table.num_rows
        else []
    )
    rows = list(zip(*(filled_ids(table, n, where) for n in columns), named, strict=True))
    for row, (graph, source, target, _) in enumerate(rows, start=1):
        _require_ends(graphs, graph, source, target, f"row {row} of {where}", str(nodes))
    own = [graphs[graph].query_id not in (s, t) for graph, s, t, _ in rows]
    known = (
        sorted({r for (*_, r), is_own in zip(rows, own, strict=True) if is_own})
        if relations is None
        else list(relations)
    )
    number = {name: at for at, name in enumerate(known)}
    found: dict[str, dict[Triple, None]] = {}
    for row, ((graph, source, target, relation), is_own) in enumerate(
        zip(rows, own, strict=True), start=1
    ):
        one = graphs[graph]
        if not is_own:
            _link(one, source, target)
            continue
        require_free(relation, f"row {row} of {where} has the relation {quoted(relation)}")
        if relation not in number:
            raise InputError(
                f"row {row} of {where} has the relation {quoted(relation)}, which is not among the "
                f"{len(known)} {whose} ({', '.join(map(quoted, known[:10]))}); {remedy} or remove the edge"
            )
        triple = one.number[source], number[relation], one.number[target]
        found.setdefault(graph, {})[triple] = None
    for graph, triples in found.items():
        graphs[graph].triples = list(triples)
    return graphs, known, sum(own) - sum(map(len, found.values()))


def _require_ends(
    graphs: Mapping[str, TableGraph], graph: str, source: str, target: str, row: str, nodes: str
) -> None:
    """Check that an edge leads from a node of its graph to a node of its graph."""
    if graph not in graphs:
        raise InputError(
            f"{row} is an edge of the graph {quoted(graph)}, which has no node in {nodes}; add its nodes or "
            "remove the edge"
        )
    for end in (source, target):
        if end not in graphs[graph].number and end != graphs[graph].query_id:
            raise InputError(
                f"{row} leads from {quoted(source)} to {quoted(target)}, but the graph {quoted(graph)} has "
                f"no node {quoted(end)} in {nodes}; add the node or remove the edge"
            )


def _link(graph: TableGraph, source: str, target: str) -> None:
    """What the query node's edges lead to is an entity of the query, unless it is one of the answer."""
    for end in {source, target} - {graph.query_id}:
        node = graph.number[str(end)]
        if graph.types[node] != ANSWER_ENTITY:
            graph.types[node] = QUERY_ENTITY


def _read_nodes(path: Path, how: TextFormat) -> dict[str, TableGraph]:
    where, names = str(path), column_names(path, how)
    require_columns(
        names,
        ["graph", "node", "text"],
        where,
        "A table of nodes has the columns graph, node and text, by these names, perhaps type and relevance",
    )
    numbers, typed = ([n for n in (name,) if n in names] for name in ("relevance", "type"))
    table = read_columns(path, ["text"], numbers, ids=["graph", "node", *typed], how=how)
    types = _types(table, where) if typed else [OTHER] * table.num_rows
    # A query node starts from a query, and needs no text of its own.
    own = np.flatnonzero(np.array(types) != QUERY_NODE)
    label: dict[int, str] = {}
    if own.size:
        texts = checked_texts(table.column("text").take(own), "text", where, own)
        label = dict(zip(own.tolist(), texts.to_pylist(), strict=True))
    relevance = _relevance(table, where) if numbers else None
    rows = zip(*(filled_ids(table, name, where) for name in ("graph", "node")), strict=True)
    graphs: dict[str, TableGraph] = {}
    for row, (graph, node) in enumerate(rows):
        one = graphs.setdefault(graph, TableGraph(relevance=None if relevance is None else []))
        if node in one.number or node == one.query_id:
            raise InputError(
                f"row {row + 1} of {where} has the node {quoted(node)} of the graph {quoted(graph)} again; "
                "give every node of a graph an id of its own"
            )
        if types[row] == QUERY_NODE:
            if one.query_id is not None:
                raise InputError(
                    f"row {row + 1} of {where} is a second query node of the graph {quoted(graph)}, besides "
                    f"{quoted(one.query_id)}; a graph has one, so remove the other"
                )
            one.query_id = node
            continue
        one.number[node] = len(one.number)
        one.labels.append(label[row])
        one.types.append(types[row])
        if one.relevance is not None and relevance is not None:
            one.relevance.append(relevance[row])
    return graphs


def _relevance(table: pa.Table, where: str) -> list[float]:
    values = numbers_of(table, "relevance", where)
    for row, value in enumerate(values, start=1):
        if abs(value) > LARGEST_RELEVANCE:
            raise InputError(
                f"row {row} of {where} has the relevance {value:g}, whose absolute value is above "
                f"{LARGEST_RELEVANCE:.4g}, the largest number of 32 bits; divide all by the same number"
            )
    return values


def filled_ids(table: pa.Table, name: str, where: str) -> list[str]:
    """The column as ids; raises InputError if one is blank, which is how csv writes a missing one."""
    ids = ids_of(table, name, where)
    blank = next((row for row, one in enumerate(ids, start=1) if not one.strip()), None)
    if blank is not None:
        raise InputError(
            f"row {blank} of {where} has nothing in column {quoted(name)}; fill it, or remove "
            "the row"
        )
    return ids


def node_types(nodes: Path, how: TextFormat) -> list[int]:
    """The type of each row of a table of nodes with a column `type`; raises InputError if one is unknown."""
    return _types(read_columns(nodes, [], [], ids=["type"], how=how), str(nodes))


def _types(table: pa.Table, where: str) -> list[int]:
    """The types of nodes, by name or number; `other` where nothing is given."""
    known = {name: at for at, name in enumerate(NODE_TYPES)}
    known |= {str(at): at for at in known.values()} | {"": OTHER, "None": OTHER}
    found: list[int] = []
    for row, value in enumerate(table.column("type").to_pylist(), start=1):
        name = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if (at := known.get(name.removesuffix(".0").replace("_", " "))) is None:
            raise InputError(
                f"row {row} of {where} has the type {quoted(name)}; types are "
                f"{', '.join(f'{at} or {quoted(n)}' for at, n in enumerate(NODE_TYPES))}"
            )
        found.append(at)
    return found
