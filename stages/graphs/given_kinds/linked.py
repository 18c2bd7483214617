"""Graphs that are cut out of a knowledge graph around the entities that texts name."""

from collections.abc import Sequence
from typing import Literal

from permafrost.stages.graphs.assembling import Item
from permafrost.stages.graphs.given import Given, GraphsForTexts, TextRows
from permafrost.stages.graphs.linked import Linking, Wanted
from permafrost.storage.progress import Progress


class LinkedGraphs(Linking, GraphsForTexts):
    """Linked as the corpora `graph_questions` and `graph_retrieval` are."""

    kind: Literal["linked"] = "linked"
    query: str | None = None
    """Column beside the texts with the part of each whose entities are entities of the query (the question);
    the whole text if not given."""
    answer: str | None = None
    """Column beside the texts with the part of each whose entities are those of the answer (the choice); none
    if not given."""

    def given(self, rows: TextRows, relations: Sequence[str], progress: Progress) -> Given:
        """Link the texts, and cut a graph for each.

        Raises:
            InputError: a column is missing, or see `Linking.linked_graphs`.
        """
        queries = rows.texts if self.query is None else rows.others(self.query)
        answers = [()] * len(rows.texts)
        if self.answer is not None:
            answers = [(answer,) for answer in rows.others(self.answer)]
        wanted = [Wanted(*row) for row in zip(rows.texts, queries, answers, strict=True)]
        collector, _, _ = self.linked_graphs(wanted, progress, relations)
        return collector, [Item(text, graph) for graph, text in enumerate(rows.texts)]
