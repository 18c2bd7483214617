"""Graphs that are cut out of a knowledge graph around the entities that texts name."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from permafrost.stages.graphs.assembling import Item
from permafrost.stages.graphs.given import Given, GraphsForTexts, TextRows
from permafrost.stages.graphs.lemmas import ENGLISH
from permafrost.stages.graphs.linked import Linking, Wanted
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted


class LinkedGraphs(Linking, GraphsForTexts):
    """Linked as the corpora `graph_questions` and `graph_retrieval` are.

    A model of `graph_questions` needs `query` and `answer`, by which nodes are scored too; one of
    `graph_retrieval`, whose texts are linked and scored as a whole, takes neither.
    """

    kind: Literal["linked"] = "linked"
    query: str | None = None
    """Column beside the texts with the part of each whose entities are entities of the query (the question);
    the whole text if not given."""
    answer: str | None = None
    """Column beside the texts with the part of each whose entities are those of the answer (the choice); none
    if not given."""

    def given(
        self, rows: TextRows, relations: Sequence[str], progress: Progress, device: str
    ) -> Given:
        """Link the texts, and cut a graph for each.

        Raises:
            InputError: a column is missing, or see `Linking.linked_graphs`.
        """
        asked = self.queries(rows)
        queries = rows.texts if asked is None else asked
        answers = [()] * len(rows.texts)
        if self.answer is not None:
            answers = [(answer,) for answer in rows.others(self.answer)]
        texts = rows.texts
        if asked is not None:
            # Without what else is in a text, such as facts.
            texts = [" ".join((q, *a)) for q, a in zip(asked, answers, strict=True)]
        wanted = [Wanted(*row) for row in zip(texts, queries, answers, strict=True)]
        collector, _, _ = self.linked_graphs(wanted, progress, relations, device)
        return collector, [Item(text, graph) for graph, text in enumerate(rows.texts)]

    def queries(self, rows: TextRows) -> Sequence[str] | None:
        """The column `query`, if it is named."""
        return None if self.query is None else rows.others(self.query)

    def require_alike(self, source: Mapping[str, Any]) -> None:
        """Graphs of training were linked too, by the same parts of a text. Facts are neither linked nor
        scored; a graph is cut for one choice, as large and by the same scores. The triples may be others: a
        graph of them grows."""
        if "knowledge" not in source:
            raise InputError(
                f"the model was trained on given graphs (kind {quoted(source.get('kind'))}), and those of "
                "kind 'linked' are cut out of a knowledge graph, which makes others; give graphs of kind "
                "'tables'"
            )
        if source.get("graph_per") == "question":
            raise InputError(
                "the model was trained on graphs of whole questions with all of their choices (graph_per: "
                "question), and graphs of kind 'linked' are of one text each; give graphs of kind 'tables'"
            )
        self._require_parts(source)
        for name in ("max_nodes", "max_words"):
            if (trained := source.get(name, getattr(self, name))) != getattr(self, name):
                raise InputError(
                    f"{name} is {getattr(self, name)}, and the model was trained with {trained}; set {name}: "
                    f"{trained}"
                )
        languages = source.get("labels_language", ENGLISH), self.knowledge.labels_language
        if languages[0] != languages[1]:
            raise InputError(
                f"the knowledge graph's language is {quoted(languages[1])}, and the model was trained on one "
                f"in {quoted(languages[0])}, by whose lemmas its texts were linked; give a knowledge graph "
                f"in {quoted(languages[0])}"
            )
        scored = source.get("node_relevance")
        if scored is not None and self.node_relevance.facts() != scored:
            kinds = self.node_relevance.kind, scored["kind"]
            raise InputError(
                f"node_relevance is {quoted(kinds[0])}, and the model was trained with "
                + (quoted(kinds[1]) if kinds[0] != kinds[1] else "that of another backbone")
                + ", by which other nodes are kept and scored otherwise; set it as in training"
            )

    def _require_parts(self, source: Mapping[str, Any]) -> None:
        """Question and choice are linked each for itself, if the texts of training had both."""
        has_choice = "graph_per" in source
        columns = {"query": self.query, "answer": self.answer}
        lacks = [name for name, column in columns.items() if column is None]
        if has_choice and lacks:
            parts = {"query": "the question", "answer": "the choice"}
            missing = " and none of ".join(parts[name] for name in lacks)
            raise InputError(
                "the model was trained on questions with a choice, whose entities are told from those of the "
                f"question, and these graphs name no column of {missing}; name "
                f"{'them' if len(lacks) > 1 else 'it'} in {' and '.join(map(quoted, lacks))}"
            )
        given = [name for name in columns if name not in lacks]
        if not has_choice and given:
            named = " and ".join(f"{name}: {columns[name]}" for name in given)
            raise InputError(
                "the model was trained on texts without a choice, which were linked as a whole, and these "
                f"graphs name parts of the texts ({named}); leave {' and '.join(map(quoted, given))} out"
            )
