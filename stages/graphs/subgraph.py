"""Subgraphs: the nodes that a text names, the nodes between them, and all edges among those that are kept.

Source: QA-GNN's preprocessing, as GT2VEC names it: nodes on a path of two hops between two linked nodes, at
most 200 nodes with the query node, cut by relevance.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.graphs.knowledge_graph import KnowledgeGraph


@dataclass(frozen=True)
class Candidates:
    """The nodes of a subgraph before it is cut; c nodes."""

    nodes: NDArray[np.int64]
    """`[c]` numbers in the knowledge graph, ascending."""
    is_query: NDArray[np.bool_]
    """`[c]`: the query names it, and the answer does not."""
    is_answer: NDArray[np.bool_]
    """`[c]`: the answer names it, whether or not the query does as well, as in QA-GNN."""
    n_linked: NDArray[np.int64]
    """`[c]`: how many linked nodes are joined to it by a triple, itself not counted."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.nodes)


@dataclass(frozen=True)
class Subgraph:
    """A subgraph after the cut, without the query node; k nodes, e edges."""

    nodes: NDArray[np.int64]
    """`[k]` numbers in the knowledge graph: linked ones first, each part by relevance."""
    n_cut: int
    """Candidates that were cut."""
    is_query: NDArray[np.bool_]
    is_answer: NDArray[np.bool_]
    relevance: NDArray[np.float32]
    triples: NDArray[np.int64]
    """`[e, 3]`: head and tail as rows of `nodes`, and the relation in between: head, relation, tail."""


class SubgraphFinder:
    """Finds subgraphs of one knowledge graph; not to be shared between threads."""

    def __init__(self, graph: KnowledgeGraph, max_nodes: int) -> None:
        """Args: max_nodes: the query node included."""
        self._graph, self._max_nodes = graph, max_nodes
        # By node: how many linked ones are its neighbours, and its row in the subgraph; clean between calls.
        self._count = np.zeros(len(graph.labels), np.int64)
        self._row = np.full(len(graph.labels), -1, np.int64)

    def candidates(self, query: Collection[int], answer: Collection[int]) -> Candidates:
        """The linked nodes, and every node that is a neighbour of two of them.

        Args:
            query: nodes that the query names.
            answer: nodes that the answer names.
        """
        answers = np.unique(np.fromiter(answer, np.int64, len(answer)))
        linked = np.union1d(np.fromiter(query, np.int64, len(query)), answers)
        offsets, others = self._graph.neighbours
        near = [others[offsets[node] : offsets[node + 1]] for node in linked]
        touched = np.concatenate(near) if near else np.empty(0, np.int32)
        np.add.at(self._count, touched, 1)
        between = touched[self._count[touched] >= 2]
        nodes = np.union1d(linked, between)
        n_linked = self._count[nodes]
        self._count[touched] = 0
        is_answer = np.isin(nodes, answers)
        is_query = np.isin(nodes, linked) & ~is_answer
        return Candidates(nodes, is_query, is_answer, n_linked)

    def cut(self, found: Candidates, relevance: NDArray[np.float32]) -> Subgraph:
        """Keep the most relevant candidates, and every triple between two of them.

        Linked nodes come before others; of equally relevant ones those with more linked neighbours come
        first, then by label.

        Args:
            found: from `candidates`.
            relevance: `[c]`, finite.
        """
        is_other = ~(found.is_query | found.is_answer)
        # Numbers are in the order of labels.
        keys = (found.nodes, -found.n_linked, -relevance, is_other)
        order = np.lexsort(keys)[: self._max_nodes - 1]
        nodes = found.nodes[order]
        return Subgraph(
            nodes,
            len(found) - len(nodes),
            found.is_query[order],
            found.is_answer[order],
            relevance[order],
            self._triples(nodes),
        )

    def _triples(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        graph, offsets = self._graph, self._graph.out_offsets
        if not len(nodes):
            return np.empty((0, 3), np.int64)
        self._row[nodes] = np.arange(len(nodes))
        starts, counts = offsets[nodes], offsets[nodes + 1] - offsets[nodes]
        before = np.cumsum(counts) - counts
        at = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        tails = self._row[graph.tails[at]]
        heads = np.repeat(np.arange(len(nodes)), counts)
        inside = tails >= 0
        relation = graph.relation[at[inside]].astype(np.int64)
        triples = np.stack([heads[inside], relation, tails[inside]], axis=1)
        self._row[nodes] = -1
        return triples
