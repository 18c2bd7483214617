"""Graphs that are given for texts, for a trained model that knows their relations: no labels, no splits."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from permafrost.stages.corpus.given_texts import require_unicode
from permafrost.stages.corpus.names import require_columns
from permafrost.stages.corpus.table_files import column_names, read_columns
from permafrost.stages.corpus.text_format import USUAL, TextFormat
from permafrost.stages.corpus.values import checked_texts
from permafrost.stages.graphs.assembling import Item
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.mentions import mentioned
from permafrost.stages.graphs.table_items import ids_or_none
from permafrost.stages.kinds import Category, Kind
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

Given = tuple[GraphCollector, list[Item]]
"""The graphs, and an item per text."""
Triples = Sequence[Sequence[str]]
"""Head, relation and tail of each edge of a graph; nodes are told apart by their labels."""


@dataclass(frozen=True)
class TextRows:
    """Texts in order, and the table whose column they are."""

    texts: Sequence[str]
    table: Path | None = None
    """None for texts that stand alone."""
    how: TextFormat = USUAL
    """How the table is written."""

    def ids(self, column: str) -> list[str | None]:
        """Another column of the table as ids; None for an empty cell.

        Raises:
            InputError: there is no table, or it has no such column.
        """
        path = self._holding(column)
        return ids_or_none(
            read_columns(path, [], [], ids=[column], how=self.how), column, str(path)
        )

    def others(self, column: str) -> list[str]:
        """Another column of the table as texts. Raises as `ids`; or a text is blank."""
        path = self._holding(column)
        return checked_texts(
            read_columns(path, [column], [], how=self.how).column(column), column, str(path)
        ).to_pylist()

    def _holding(self, column: str) -> Path:
        if self.table is None:
            raise InputError(
                f"the graphs are named in a column {quoted(column)} beside the texts, but the texts are not "
                "read from a table; give a parquet, jsonl, csv or tsv file with both columns"
            )
        require_columns(
            column_names(self.table, self.how),
            [column],
            str(self.table),
            "The graphs' own fields name columns of the texts' table: 'graph' of kind 'tables', 'query' and "
            "'answer' of kind 'linked'",
        )
        return self.table


class GraphsForTexts(Kind):
    """Where the graphs of texts come from."""

    @abstractmethod
    def given(
        self, rows: TextRows, relations: Sequence[str], progress: Progress, device: str
    ) -> Given:
        """The graphs, and an item for each text.

        Args:
            rows: the texts.
            relations: those that the model knows, in its order.
            progress: receives what is done.
            device: where a model that scores nodes runs.

        Raises:
            InputError: the data are faulty, or an edge has another relation.
        """

    def require_alike(self, source: Mapping[str, Any]) -> None:
        """Check that graphs are made as those of training were, as far as this kind decides about it.

        Args:
            source: settings of the corpus that the model was trained on, as its key has them.

        Raises:
            InputError: they are not; says what to set.
        """
        return

    def queries(self, rows: TextRows) -> Sequence[str] | None:
        """The question in each text; None for a kind that does not tell it from the text.

        Raises:
            InputError: its column is missing.
        """
        return None


GRAPHS_FOR_TEXTS = Category(
    "graphs for texts", GraphsForTexts, "permafrost.stages.graphs.given_kinds"
)
GraphsForTextsConfig = Annotated[GraphsForTexts, GRAPHS_FOR_TEXTS.field()]
"""Any of them, by its `kind`."""


def require_told_by_triples(source: Mapping[str, Any]) -> None:
    """Check that triples are all that graphs of training were made of.

    Args:
        source: settings of the corpus that the model was trained on, as its key has them.

    Raises:
        InputError: they are not; says what to give instead.
    """
    if "knowledge" in source:
        raise InputError(
            "the model was trained on graphs that were cut out of a knowledge graph, whose entities were "
            "linked by lemma, and triples do not tell which nodes these are; give graphs of kind 'linked', "
            "or of kind 'tables' with the type of each node"
        )
    if columns := source.get("node_columns"):
        raise InputError(
            f"the model was trained on nodes with {' and '.join(columns)}, which triples do not have; give "
            "graphs of kind 'tables'"
        )


def without_graphs(rows: TextRows, relations: Sequence[str]) -> Given:
    """The texts alone."""
    return GraphCollector(len(relations)), [Item(text, -1) for text in rows.texts]


def given_triples(
    rows: TextRows,
    graphs: Sequence[Triples | None],
    relations: Sequence[str],
    *,
    link: bool = True,
    label_given: Callable[[str], str] = str,
) -> Given:
    """A graph for each text from its triples; None for a text without one.

    A triple that comes twice counts once; a graph without triples is one of the query node alone. If `link`,
    nodes whose labels occur in the text are entities of the query; if not, none is. Labels are what
    `label_given` makes of heads and tails, as in `GraphSource`.

    Raises:
        InputError: there are not as many graphs as texts, something is no triple of texts, a label is blank,
            or a relation is not known.
    """
    if len(graphs) != len(rows.texts):
        raise InputError(
            f"there are {len(rows.texts)} texts and {len(graphs)} graphs; give one graph for each text, None "
            "for a text without one"
        )
    number = {name: at for at, name in enumerate(relations)}
    collector, items = GraphCollector(len(relations)), list[Item]()
    for at, (text, triples) in enumerate(zip(rows.texts, graphs, strict=True)):
        if triples is None:
            items.append(Item(text, -1))
            continue
        if not isinstance(triples, list | tuple):
            raise InputError(
                f"graph {at} is {quoted(triples)}; give a list of triples (head, relation, tail), or None "
                "for a text without a graph"
            )
        labels: dict[str, int] = {}
        edges: list[tuple[int, int, int]] = []
        for triple in triples:
            head, relation, tail = _checked(triple, at)
            if relation not in number:
                raise InputError(
                    f"graph {at} has the relation {quoted(relation)}, which is not among the "
                    f"{len(number)} that the model knows ({', '.join(map(quoted, relations[:10]))}); leave "
                    "the triple out, or train a model with this relation"
                )
            ends = [labels.setdefault(label_given(end), len(labels)) for end in (head, tail)]
            edges.append((ends[0], number[relation], ends[1]))
        queries = mentioned(list(labels), text) if link else ()
        items.append(Item(text, collector.add(list(labels), edges, queries=queries)))
    return collector, items


def _checked(triple: object, graph: int) -> tuple[str, str, str]:
    parts = tuple(triple) if isinstance(triple, list | tuple) else ()
    if len(parts) != 3 or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InputError(
            f"graph {graph} has {quoted(triple)} where a triple belongs; give (head, relation, tail), three "
            "texts that are not blank"
        )
    for part in parts:
        require_unicode(part, f"a text of graph {graph}")
    return parts
