"""Corpora whose graphs are cut out of a knowledge graph around the entities that their texts name."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import LABELLED_SPLITS
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.knowledge_graph import KnowledgeConfig, KnowledgeGraph
from permafrost.stages.graphs.lemmas import ENGLISH
from permafrost.stages.graphs.linking import MAX_WORDS, EntityIndex
from permafrost.stages.graphs.relevance import RelevanceConfig
from permafrost.stages.graphs.relevances.none import NoRelevance
from permafrost.stages.graphs.source import GraphSource
from permafrost.stages.graphs.subgraph import Candidates, SubgraphFinder
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.quoting import quoted

_EVERY = 500
"""Graphs between two steps of the progress display."""


@dataclass(frozen=True)
class Wanted:
    """What a graph is made for."""

    text: str
    """Nodes are scored by their relevance to it."""
    query: str
    """Its entities are query entities."""
    answers: tuple[str, ...] = ()
    """Their entities are answer entities, also those that the query names."""


class Linking(BaseModel):
    """How texts are linked to a knowledge graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knowledge: KnowledgeConfig
    """Where the triples come from."""
    node_relevance: RelevanceConfig = NoRelevance()
    """How nodes are scored, by which a graph is cut to `max_nodes`."""
    max_nodes: int = Field(default=200, ge=2, le=MAX_STEPS)
    """Maximum nodes of a graph, the query node included."""
    max_words: int = Field(default=MAX_WORDS, ge=1, le=MAX_STEPS)
    """Words of the longest phrase that is linked."""

    def linked_facts(self) -> dict[str, Any]:
        """The facts of the knowledge graph and of the relevance, and a language other than English."""
        language = self.knowledge.labels_language
        return {
            "knowledge": self.knowledge.facts(),
            "node_relevance": self.node_relevance.facts(),
            # A later fact: keys of before stay as they are.
            **({} if language == ENGLISH else {"labels_language": language}),
        }

    def linked_graphs(
        self,
        wanted: Sequence[Wanted],
        progress: Progress,
        relations: Sequence[str] | None = None,
        device: str = "auto",
    ) -> tuple[GraphCollector, KnowledgeGraph, dict[str, int]]:
        """A graph for each, in order: linked nodes, the nodes between two of them, all edges among these.

        One whose texts name no entity gets a graph of the query node alone. Also the knowledge graph, and how
        many nodes were cut off.

        Args:
            wanted: what for.
            progress: receives the graphs that are done.
            relations: those that are known, in their order; None for those of the knowledge graph.
            device: where a model that scores nodes runs.

        Raises:
            InputError: the knowledge graph cannot be read, the model of the relevance cannot score or gives a
                score that is not finite, or an edge has a relation that is not known.
        """
        graph = self.knowledge.read(progress)
        known = graph.relations if relations is None else tuple(relations)
        index = EntityIndex(graph.labels, self.max_words, self.knowledge.labels_language)
        link = cache(index.link)  # a question comes with each of its choices
        finder = SubgraphFinder(graph, self.max_nodes)
        found: list[Candidates] = []
        progress.start("link entities", len(wanted), "graphs")
        try:
            for at, one in enumerate(wanted, start=1):
                answers = [node for answer in one.answers for node in link(answer)]
                found.append(finder.candidates(link(one.query), answers))
                if at % _EVERY == 0:
                    progress.advance(_EVERY)
        finally:
            progress.finish()
        texts, nodes = [one.text for one in wanted], [one.nodes for one in found]
        scores = self.node_relevance.scores(graph.labels, texts, nodes, progress, device)
        for text, some, relevance in zip(texts, nodes, scores, strict=True):
            if len(wrong := np.flatnonzero(~np.isfinite(relevance))):
                label = graph.labels[int(some[wrong[0]])]
                raise InputError(
                    f"node_relevance {quoted(self.node_relevance.kind)} gives the node {quoted(label)} the "
                    f"score {relevance[wrong[0]]} for the text {quoted(text)}, expected a finite number; "
                    "compute in a wider type (dtype: float32), or use another kind"
                )
        n_cut, scores_nodes = 0, self.node_relevance.scores_nodes
        collector = GraphCollector(len(known))
        progress.start("cut subgraphs", len(found), "graphs")
        try:
            for at, (one, relevance) in enumerate(zip(found, scores, strict=True), start=1):
                kept = finder.cut(one, relevance)
                n_cut += kept.n_cut
                labels = [graph.labels[int(node)] for node in kept.nodes]
                collector.add(
                    labels,
                    [
                        (h, _known(graph.relations[r], known, labels[h], labels[t]), t)
                        for h, r, t in kept.triples.tolist()
                    ],
                    queries=np.flatnonzero(kept.is_query).tolist(),
                    answers=np.flatnonzero(kept.is_answer).tolist(),
                    relevance=kept.relevance.tolist() if scores_nodes else None,
                )
                if at % _EVERY == 0:
                    progress.advance(_EVERY)
        finally:
            progress.finish()
        return collector, graph, {"nodes_cut": n_cut}


class LinkedSource(Linking, GraphSource, ABC):
    """A source that links its texts to a knowledge graph."""

    @property
    def runs_a_model(self) -> bool:
        """If it scores the nodes."""
        return self.node_relevance.runs_a_model

    @property
    def known_ahead(self) -> bool:
        """Unless a model scores the nodes."""
        return not self.runs_a_model

    def cut_graphs(
        self, wanted: Sequence[Wanted], progress: Progress, device: str
    ) -> tuple[GraphCollector, KnowledgeGraph, dict[str, int]]:
        """Graphs of a corpus, of which at least one has to name a label: as `linked_graphs` otherwise.

        Raises:
            InputError: as `linked_graphs`; or no text names a label.
        """
        found = self.linked_graphs(wanted, progress, device=device)
        collector, graph, _ = found
        if wanted and not collector.n_labels:
            raise InputError(
                f"none of the {len(wanted):,} texts (the first: {quoted(wanted[0].text)}) names one of the "
                f"{len(graph.labels):,} labels of the knowledge graph "
                f"({', '.join(map(quoted, graph.labels[:3]))}); give both in one language, which "
                f"'language' of 'knowledge' names ({quoted(self.knowledge.labels_language)} here), and with "
                f"spaces between words; labels of more than {self.max_words} words (max_words), and of "
                "words of English grammar alone, are not linked"
            )
        return found

    @abstractmethod
    def build_showing(self, progress: Progress, device: str = "auto") -> GraphCorpus:
        """As `build`; tells `progress` how many graphs are done."""

    def build(self) -> GraphCorpus:
        """Read the texts, and cut a graph out of the knowledge graph for each."""
        return self.build_showing(SilentProgress())


def _known(relation: str, known: tuple[str, ...], head: str, tail: str) -> int:
    try:
        return known.index(relation)
    except ValueError:
        raise InputError(
            f"the knowledge graph has the triple {quoted(head)}, {quoted(relation)}, {quoted(tail)}, whose "
            f"relation is not among the {len(known)} that are known here "
            f"({', '.join(map(quoted, known[:10]))}); give triples with these relations, merged or raw as "
            "they were in training"
        ) from None


def require_labelled_splits(splits: Sequence[str]) -> None:
    """Check the names of splits.

    Raises:
        ValueError: one is none of train, dev and test.
    """
    if odd := [split for split in splits if split not in LABELLED_SPLITS]:
        raise ValueError(
            f"the split {quoted(odd[0])} is not one of {', '.join(LABELLED_SPLITS)}; rename it"
        )
