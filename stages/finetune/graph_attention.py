"""Attention in the last layer of a graph encoder, in the graphs of some cases, for drawings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.graph_batches import texts_of
from permafrost.stages.finetune.shown_cases import ShownCase
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.metrics.graph_attention import (
    ATTENTION_EDGES,
    ATTENTION_NODES,
    GraphAttention,
)


def graph_attention(
    trainee: GraphTextTrainee, data: FinetuneData, shown: Sequence[ShownCase]
) -> GraphAttention | None:
    """The graphs of some cases; None if there are none, or the model has no attention.

    Args:
        trainee: a trained model, in evaluation mode.
        data: of the corpus.
        shown: the cases.
    """
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    for case in shown:
        batch = trainee.reader.batch(case.items, trainee.device)
        with torch.no_grad():
            weights = trainee.model.attention(batch)
        if weights is None or batch.graphs is None:
            return None
        values = weights.double().cpu().numpy()
        texts = texts_of(data.corpus, case.items)
        for at, item in enumerate(case.items.tolist()):
            names = {"case": case.number, "place": at, "item": item}
            verdict = {"is_right": case.are_right[at], "is_answer": case.are_answers[at]}
            drawn = _Drawn(data, batch.graphs, at, int(trainee.reader.graphs[item]), values)
            text = data.corpus.texts[int(texts[at])]
            nodes += [{**names, "text": text, **verdict, **row} for row in drawn.nodes()]
            edges += [{**names, **row} for row in drawn.edges()]
    if not nodes:
        return None
    return GraphAttention(_table(nodes, ATTENTION_NODES), _table(edges, ATTENTION_EDGES))


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.table({name: [row[name] for row in rows] for name in schema.names}, schema=schema)


class _Drawn:
    """One graph of a batch, with its rows of the attention."""

    def __init__(
        self,
        data: FinetuneData,
        batch: GraphBatch,
        at: int,
        graph: int,
        weights: NDArray[np.float64],
    ) -> None:
        self._data, self._batch, self._weights, self._graph = data, batch, weights, graph
        (self._rows,) = np.nonzero(batch.graph_of_node.cpu().numpy() == at)
        self._number = {row: n for n, row in enumerate(self._rows.tolist())}

    def nodes(self) -> list[dict[str, Any]]:
        corpus, n_edges = self._data.corpus, len(self._batch.source)
        labels = [-1]
        if self._graph >= 0:
            labels = corpus.graphs.node_label[corpus.graphs.nodes_of(self._graph)].tolist()
        kinds = self._batch.node_type.cpu().numpy()[self._rows].tolist()
        weights = self._weights[n_edges + self._rows].tolist()
        return [
            {
                "node": n,
                "label": None if label < 0 else corpus.labels[label],
                "type": kind,
                "attention": weight,
            }
            for n, (label, kind, weight) in enumerate(zip(labels, kinds, weights, strict=True))
        ]

    def edges(self) -> list[dict[str, Any]]:
        columns = (self._batch.source, self._batch.target, self._batch.relation)
        rows = zip(*(c.tolist() for c in columns), self._weights.tolist(), strict=False)
        return [
            {
                "source": self._number[source],
                "target": self._number[target],
                "relation": self._data.corpus.relation_names[relation],
                "attention": weight,
            }
            for source, target, relation, weight in rows
            if source in self._number
        ]
