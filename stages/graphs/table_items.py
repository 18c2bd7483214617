"""Texts with the graphs of a user's tables."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from permafrost.stages.corpus.values import checked_texts, ids_of, plain
from permafrost.stages.graphs.assembling import Item
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_tables import TableGraph
from permafrost.stages.graphs.mentions import mentioned
from permafrost.stages.graphs.node_types import ANSWER_ENTITY, OTHER, QUERY_ENTITY
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class UsedGraphs:
    """The graphs that texts use, each with the query node of its text.

    Args:
        graphs: of the tables, by id.
        n_relations: of their edges.
        link: whether every node whose label occurs in a text is an entity of the query.
        where: the table of nodes, for messages.
    """

    def __init__(
        self, graphs: Mapping[str, TableGraph], n_relations: int, link: bool, where: str
    ) -> None:
        self.collector = GraphCollector(n_relations)
        self.names = set[str]()
        self._graphs, self._link, self._where = graphs, link, where
        self._made: dict[tuple[str, tuple[int, ...]], int] = {}

    def items(self, table: pa.Table, text: str, graph: str, where: str) -> list[Item]:
        """The texts of a column with the graphs of another.

        Raises:
            InputError: a text is blank, or a graph is not there.
        """
        texts = checked_texts(table.column(text), text, where).to_pylist()
        return self.items_of(texts, ids_or_none(table, graph, where), where)

    def items_of(self, texts: Sequence[str], ids: Sequence[str | None], where: str) -> list[Item]:
        """These texts, each with the graph of an id. Raises: InputError: a graph is not there."""
        return [
            Item(told, -1 if name is None else self._graph(name, told, f"row {row} of {where}"))
            for row, (told, name) in enumerate(zip(texts, ids, strict=True), start=1)
        ]

    def _graph(self, name: str, text: str, where: str) -> int:
        if (graph := self._graphs.get(name)) is None:
            whole = name.removesuffix(".0")
            raise InputError(
                f"{where} names the graph {quoted(name)}, which has no node in {self._where}; "
                + (
                    f"there is a graph {quoted(whole)}, and pandas writes whole numbers beside empty cells "
                    "as floats; give the column the dtype Int64 before it is written"
                    if whole != name and whole in self._graphs
                    else "add its nodes, or leave the cell empty for a text without a graph"
                )
            )
        self.names.add(name)
        queries = set(graph.of_type(QUERY_ENTITY))
        if self._link:
            queries |= {n for n in mentioned(graph.labels, text) if graph.types[n] == OTHER}
        key = name, tuple(sorted(queries))
        if key not in self._made:
            self._made[key] = self.collector.add(
                graph.labels,
                graph.triples,
                queries=queries,
                answers=graph.of_type(ANSWER_ENTITY),
                relevance=graph.relevance,
            )
        return self._made[key]


def ids_or_none(table: pa.Table, name: str, where: str) -> list[str | None]:
    """The column as ids; None for an empty cell."""
    values = plain(table, name, where)
    there = [i for i, value in enumerate(values) if value not in (None, b"", "")]
    found: list[str | None] = [None] * len(values)
    for at, value in zip(
        there, ids_of(table.take(pa.array(there, pa.int64())), name, where, there), strict=True
    ):
        found[at] = value
    return found
