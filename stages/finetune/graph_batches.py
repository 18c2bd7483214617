"""Graphs and texts of some items of a corpus, as tensors: what a graph-text model reads.

Axes: i items, n nodes, d width of features.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.finetune.model import QueryNode, ReadoutText
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.node_types import N_QUERY_RELATIONS, OTHER, QUERY_NODE, n_relations
from permafrost.storage.ragged import offsets_of, ranges
from permafrost.storage.readers import FeatureReader


@runtime_checkable
class Rows(Protocol):
    """One vector for each of an ordered list of texts."""

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        ...

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors at these indices `[n, width]`; repeats are allowed."""
        ...


@dataclass(frozen=True)
class StoredRows:
    """Vectors in a feature store, one row per text."""

    reader: FeatureReader

    @property
    def width(self) -> int:
        """Of the stored array."""
        return self.reader.width

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read from the store, each text once."""
        if not len(indices):
            return np.empty((0, self.width), np.float32)
        texts, at = np.unique(indices, return_inverse=True)
        _, rows = next(self.reader.subset(texts).in_order(len(texts)))
        return np.asarray(rows.data, np.float32)[at]


@dataclass(frozen=True)
class RandomRows:
    """Vectors of standard normal numbers, a control: the same for the same seed and number of a text."""

    width: int
    seed: int

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Draw them."""
        texts, at = np.unique(indices, return_inverse=True)
        rows = [
            np.random.default_rng([self.seed, text]).standard_normal(self.width, np.float32)
            for text in texts.tolist()
        ]
        return np.stack(rows)[at] if rows else np.empty((0, self.width), np.float32)


@dataclass(frozen=True)
class ItemFeatures:
    """Stored vectors of a corpus with graphs; None where a model does not ask for them."""

    labels: Rows | None
    """Of node labels."""
    texts: Rows | None
    """Of all texts, from the backbone that reads them."""
    descriptions: Rows | None = None
    """Of items: their graph in words, and their text."""
    entering: tuple[FeatureReader, ...] | None = None
    """Of all texts, what enters each block of the backbone at every token."""
    node_texts: Rows | None = None
    """Of all texts, from the model that reads node labels."""


def graph_batch(
    corpus: GraphCorpus,
    features: ItemFeatures,
    items: NDArray[np.int64],
    graphs: NDArray[np.int64],
    query: QueryNode = "stored",
    readout: ReadoutText = "backbone",
) -> GraphBatch:
    """Graphs of items, on the CPU. An item without graph has one of its query node alone.

    Args:
        corpus: of the items.
        features: of labels and texts.
        items: rows of the corpus' items.
        graphs: the graph of each, not necessarily its own; -1 for none.
        query: whether the query node and its edges are there.
        readout: whose vectors of the texts the readout reads.
    """
    assert features.labels is not None
    assert features.texts is not None
    read_out = features.texts if readout == "backbone" else features.node_texts
    assert read_out is not None
    columns = corpus.graphs
    has = graphs >= 0
    own = np.where(has, graphs, 0)
    # There may be no graph at all, so that not even the first one may be asked for.
    n_nodes, n_edges = np.ones(len(items), np.int64), np.zeros(len(items), np.int64)
    n_nodes[has] = np.diff(columns.node_offsets)[own[has]]
    n_edges[has] = np.diff(columns.edge_offsets)[own[has]]
    starts = offsets_of(n_nodes)
    owner = np.repeat(np.arange(len(items)), n_nodes)
    label = np.full(starts[-1], -1, np.int64)
    kind = np.full(starts[-1], QUERY_NODE, np.int64)
    rows = ranges(columns.node_offsets[own[has]], n_nodes[has])
    label[has[owner]], kind[has[owner]] = columns.node_label[rows], columns.node_type[rows]
    edges = ranges(columns.edge_offsets[own], n_edges)
    shift = np.repeat(starts[:-1], n_edges)
    ends = [column[edges] + shift for column in (columns.edge_source, columns.edge_target)]
    relation = columns.edge_relation[edges].astype(np.int64)
    texts = _column(corpus, "text")[items]
    query_features = features.texts.take(_column(corpus, "query")[items])
    text_features = read_out.take(texts)
    if query == "hidden":
        kind[kind != QUERY_NODE] = OTHER
        n_raw = len(corpus.relations)
        kept = relation % (n_raw + N_QUERY_RELATIONS) < n_raw
        ends, relation = [end[kept] for end in ends], relation[kept]
        query_features, text_features = (np.zeros_like(f) for f in (query_features, text_features))
    is_label = label >= 0
    node_features = np.zeros((len(label), features.labels.width), np.float32)
    node_features[is_label] = features.labels.take(label[is_label])
    relevance = None
    if query != "hidden" and columns.are_scored:  # it is to the text
        scores = np.zeros(len(label), np.float32)
        scores[has[owner]] = columns.node_relevance[rows]
        relevance = torch.from_numpy(scores)
    source, target = ends
    return GraphBatch(
        features=torch.from_numpy(node_features),
        query_features=torch.from_numpy(query_features),
        node_type=torch.from_numpy(kind),
        source=torch.from_numpy(source),
        target=torch.from_numpy(target),
        relation=torch.from_numpy(relation),
        graph_of_node=torch.from_numpy(owner),
        query_node=torch.from_numpy(starts[:-1].copy()),
        text_features=torch.from_numpy(text_features),
        relevance=relevance,
    )


def relations_of(corpus: GraphCorpus) -> int:
    """Number of relations that a graph encoder is built for."""
    return n_relations(len(corpus.relations))


def text_rows(
    corpus: GraphCorpus, features: ItemFeatures, items: NDArray[np.int64]
) -> Float[Tensor, "i d"]:
    """The stored vector of each item's text."""
    assert features.texts is not None
    return torch.from_numpy(features.texts.take(_column(corpus, "text")[items]))


def texts_of(corpus: GraphCorpus, items: NDArray[np.int64]) -> NDArray[np.int64]:
    """The text of each item."""
    return _column(corpus, "text")[items]


def _column(corpus: GraphCorpus, name: str) -> NDArray[np.int64]:
    return corpus.items.column(name).to_numpy().astype(np.int64)
