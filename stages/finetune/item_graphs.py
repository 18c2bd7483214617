"""The graph of each item: its own or, as a control, another one's. Axes: g graphs, n nodes, e edges."""

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.finetune.model import QueryNode
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.node_types import N_QUERY_RELATIONS, NODE_TYPES, OTHER, QUERY_NODE
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import offsets_of


def graphs_of(
    corpus: GraphCorpus, shuffled_by: int | None = None, query: QueryNode = "stored"
) -> NDArray[np.int64]:
    """The graph of each item `[n_items]`; with a seed, a control, those of other items, dealt out among the
    items that have one, so that nobody gets one that is equal to its own.

    Args:
        corpus: of the items.
        shuffled_by: a seed; None for each item's own graph.
        query: whether query nodes and their edges are read, and so tell graphs apart.

    Raises:
        InputError: more than half of the items have equal graphs, so that they cannot all get another.
    """
    graphs = corpus.items.column("graph").to_numpy().astype(np.int64)
    if shuffled_by is None:
        return graphs
    has = np.flatnonzero(graphs >= 0)
    circle = np.random.default_rng([shuffled_by, len(graphs)]).permutation(has)
    _, first, content, counts = np.unique(
        contents(corpus, query)[graphs[circle]],
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    most = int(counts.max(initial=0))
    if 2 * most > len(circle):
        raise InputError(
            f"graphs is shuffled, but {most} of the {len(circle)} texts with a graph have the same one, so "
            "that they cannot all get another; leave this control out"
        )
    # Items with equal graphs side by side; the circle stays as it was drawn where there are none.
    circle = circle[np.argsort(first[content], kind="stable")]
    dealt = graphs.copy()
    dealt[circle] = graphs[np.roll(circle, most)]
    return dealt


def contents(corpus: GraphCorpus, query: QueryNode = "stored") -> NDArray[np.int64]:
    """A number for each graph `[g]`, equal for those with the same nodes, by label and type, and the same
    edges between them, in whatever order. Scores of nodes are of the text, and tell no graphs apart."""
    graphs, n = corpus.graphs, len(corpus.graphs)
    types, relation = graphs.node_type.astype(np.int64), graphs.edge_relation.astype(np.int64)
    n_edges = np.diff(graphs.edge_offsets)
    owner = np.repeat(np.arange(n), n_edges)
    starts = graphs.node_offsets[owner]
    kept = np.ones(len(relation), np.bool_)
    if query == "hidden":
        types = np.where(types == QUERY_NODE, QUERY_NODE, OTHER)
        n_raw = len(corpus.relations)
        kept = relation % (n_raw + N_QUERY_RELATIONS) < n_raw
    code = graphs.node_label * len(NODE_TYPES) + types
    source, target = code[starts + graphs.edge_source], code[starts + graphs.edge_target]
    owner, *edges = (column[kept] for column in (owner, source, relation, target))
    of_node = np.repeat(np.arange(n), np.diff(graphs.node_offsets))
    nodes = code[np.lexsort((code, of_node))]
    triples = np.stack(edges, axis=1)[np.lexsort((*edges, owner))]
    ends = offsets_of(np.bincount(owner, minlength=n))
    number: dict[tuple[bytes, bytes], int] = {}
    return np.array(
        [
            number.setdefault(
                (
                    nodes[graphs.nodes_of(graph)].tobytes(),
                    triples[ends[graph] : ends[graph + 1]].tobytes(),
                ),
                len(number),
            )
            for graph in range(n)
        ],
        np.int64,
    )
