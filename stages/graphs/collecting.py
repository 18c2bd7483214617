"""Building graphs one by one: labels are numbered, the query node and the inverse edges are added."""

from array import array
from collections.abc import Collection, Sequence

import numpy as np

from permafrost.stages.graphs.node_types import (
    ANSWER_ENTITY,
    N_QUERY_RELATIONS,
    OTHER,
    QUERY_ENTITY,
    QUERY_NODE,
)
from permafrost.stages.graphs.text_graphs import TextGraphs
from permafrost.storage.ragged import offsets_of
from permafrost.storage.texts import Texts

Triple = tuple[int, int, int]
"""Head, relation, tail: the numbers of two nodes of a graph, and that of a relation of the corpus."""


class GraphCollector:
    """Collects graphs with `n_raw` relations of their own.

    A graph gets one more node, the query node, which becomes its first; edges from it to its query entities
    and answer entities; and the inverse of every edge. The forward edges come first, in the order given.
    """

    def __init__(self, n_raw: int) -> None:
        self._n_raw = n_raw
        self._are_scored = True
        self._labels: dict[str, int] = {}
        self._n_nodes, self._n_edges = array("q"), array("q")
        self._label, self._type, self._relevance = array("q"), array("b"), array("f")
        self._source, self._target, self._relation = array("i"), array("i"), array("i")

    def __len__(self) -> int:
        """Number of graphs so far."""
        return len(self._n_nodes)

    @property
    def n_labels(self) -> int:
        """Number of distinct labels so far."""
        return len(self._labels)

    def add(
        self,
        labels: Sequence[str],
        triples: Sequence[Triple],
        *,
        queries: Collection[int] = (),
        answers: Collection[int] = (),
        relevance: Sequence[float] | None = None,
    ) -> int:
        """Add a graph and return its number.

        Args:
            labels: of its nodes, without the query node.
            triples: its edges; a triple that comes twice counts once.
            queries: nodes that the query names.
            answers: nodes that the answer names; one that the query names too is a query entity.
            relevance: of every node; None where nodes are not scored.
        """
        assert all(0 <= end < len(labels) for h, _, t in triples for end in (h, t)), "dangling edge"
        assert all(0 <= r < self._n_raw for _, r, _ in triples), "unknown relation"
        assert relevance is None or len(relevance) == len(labels), "one relevance a node"
        # A graph of the query node alone has nothing to score.
        self._are_scored &= relevance is not None or not labels
        self._n_nodes.append(1 + len(labels))
        self._label.append(-1)
        self._type.append(QUERY_NODE)
        self._relevance.append(0.0)
        for node, label in enumerate(labels):
            self._label.append(self._labels.setdefault(label, len(self._labels)))
            is_answer = ANSWER_ENTITY if node in answers else OTHER
            self._type.append(QUERY_ENTITY if node in queries else is_answer)
            self._relevance.append(0.0 if relevance is None else relevance[node])
        edges = [(h + 1, r, t + 1) for h, r, t in dict.fromkeys(triples)]
        edges += [(0, self._n_raw, node + 1) for node in sorted(queries)]
        edges += [(0, self._n_raw + 1, node + 1) for node in sorted({*answers} - {*queries})]
        inverse = self._n_raw + N_QUERY_RELATIONS
        for head, relation, tail in [*edges, *((t, r + inverse, h) for h, r, t in edges)]:
            self._source.append(head)
            self._relation.append(relation)
            self._target.append(tail)
        self._n_edges.append(2 * len(edges))
        return len(self._n_nodes) - 1

    def finish(self) -> tuple[Texts, TextGraphs]:
        """Every label once, in order of first appearance; and the graphs."""
        return Texts.of(list(self._labels)), TextGraphs(
            node_offsets=offsets_of(np.array(self._n_nodes, np.int64)),
            node_label=np.array(self._label, np.int64),
            node_type=np.array(self._type, np.int8),
            node_relevance=np.array(self._relevance, np.float32),
            edge_offsets=offsets_of(np.array(self._n_edges, np.int64)),
            edge_source=np.array(self._source, np.int32),
            edge_target=np.array(self._target, np.int32),
            edge_relation=np.array(self._relation, np.int32),
            are_scored=self._are_scored,
        )
