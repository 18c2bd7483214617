"""Graphs in a table of nodes and a table of edges, as those of a corpus of kind `graphs`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from permafrost.stages.corpus.table_files import column_names
from permafrost.stages.corpus.text_format import TextFormat
from permafrost.stages.graphs.given import Given, GraphsForTexts, TextRows
from permafrost.stages.graphs.graph_tables import OPTIONAL_COLUMNS, node_types, read_graphs
from permafrost.stages.graphs.node_types import ANSWER_ENTITY, OTHER, QUERY_ENTITY
from permafrost.stages.graphs.table_form import TableForm
from permafrost.stages.graphs.table_items import UsedGraphs
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted


class TableGraphs(TableForm, GraphsForTexts):
    """Each text names its graph in a column beside it."""

    kind: Literal["tables"] = "tables"
    nodes: str
    """As in a corpus of kind `graphs`."""
    edges: str
    """Likewise; its relations are those that the model knows."""
    graph: str = "graph"
    """Column of the texts' own table with the id of each text's graph; an empty cell is a text without."""
    linking: Literal["label_in_text", "none"] = "label_in_text"
    """As in a corpus of kind `graphs`."""

    def given(
        self, rows: TextRows, relations: Sequence[str], progress: Progress, device: str
    ) -> Given:
        """Read the tables.

        Raises:
            InputError: see `read_graphs`; or a text names an unknown graph.
        """
        ids = rows.ids(self.graph)
        graphs, _, _ = read_graphs(
            Path(self.nodes),
            Path(self.edges),
            relations,
            whose="that the model knows",
            remedy="train a model with this relation",
            formats=self.formats({"nodes": self.nodes, "edges": self.edges}),
        )
        used = UsedGraphs(graphs, len(relations), self.linking == "label_in_text", self.nodes)
        return used.collector, used.items_of(rows.texts, ids, str(rows.table))

    def require_alike(self, source: Mapping[str, Any]) -> None:
        """Linking is that of training, if that corpus had the choice, and so are the columns of nodes. Of
        graphs that were linked by lemma the table says what the entities are, and none is one of an answer
        where texts had no choice."""
        columns = self._node_columns()
        if "knowledge" in source:
            has_types = "type" in columns
            if self.linking != "none" or not has_types:
                raise InputError(
                    f"linking is {self.linking}, and {self.nodes} has {'a' if has_types else 'no'} column "
                    "'type'; the model was trained on graphs whose entities were linked by lemma, so name "
                    "them in 'type', and set linking: none"
                )
            if "graph_per" not in source:
                self._require_no_answers()
        if (trained := source.get("linking", self.linking)) != self.linking:
            raise InputError(
                f"linking is {self.linking}, and the model was trained with {trained}; set linking: {trained}"
            )
        if "knowledge" not in source:
            self._require_columns(columns, source.get("node_columns", []))

    def _node_columns(self) -> list[str]:
        """Those of the optional columns that the table of nodes has."""
        names = column_names(Path(self.nodes), self._format_of_nodes())
        return [name for name in OPTIONAL_COLUMNS if name in names]

    def _format_of_nodes(self) -> TextFormat:
        return self.formats({"nodes": self.nodes, "edges": self.edges})(Path(self.nodes))

    def _require_no_answers(self) -> None:
        types = node_types(Path(self.nodes), self._format_of_nodes())
        if ANSWER_ENTITY in types:
            raise InputError(
                f"row {types.index(ANSWER_ENTITY) + 1} of {self.nodes} is an answer entity (type "
                f"{ANSWER_ENTITY}), and the model was trained on texts without a choice, whose graphs have "
                f"none; make it a query entity ({QUERY_ENTITY}), or another node ({OTHER})"
            )

    def _require_columns(self, columns: Sequence[str], trained: Sequence[str]) -> None:
        if [*columns] == [*trained]:
            return
        lacks = [quoted(name) for name in trained if name not in columns]
        more = [quoted(name) for name in columns if name not in trained]
        advice = [f"add {' and '.join(lacks)}"] * bool(lacks)
        advice += [f"take {' and '.join(more)} out"] * bool(more)
        had, has = (" and ".join(map(quoted, c)) or "neither" for c in (trained, columns))
        raise InputError(
            f"of the columns 'type' and 'relevance' {self.nodes} has {has}, and the nodes that the model was "
            f"trained on had {had}; {' and '.join(advice)}"
        )
