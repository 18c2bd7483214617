"""Score a trained graph-text model on dev and test, and keep the attention inside a few graphs.

Dev and test are scored with their true labels, even for a model that was trained on shuffled ones. Only graph
and text are read: the second branch plays no part (GT2VEC, D.1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from permafrost.stages.corpus.overlap import overlap_of_cases
from permafrost.stages.finetune.cases import (
    SPLITS,
    Cases,
    alike,
    items_by_split,
    require_cases,
    texts_of_items,
)
from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.graph_attention import graph_attention
from permafrost.stages.finetune.search import Search, all_documents, ndcg_at_10, searched
from permafrost.stages.finetune.shown_cases import picked_cases, shown_answers, shown_searches
from permafrost.stages.finetune.ties import n_drawn
from permafrost.stages.finetune.trained import Finetuned
from permafrost.stages.finetune.trainee import GraphTextTrainee, as_batch
from permafrost.stages.fit.metrics import class_balance, majority_rate
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.metrics.graph_attention import GraphAttention
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import PREDICTIONS, predictions_table
from permafrost.stages.metrics.records import write_metrics
from permafrost.storage.ragged import Ragged


@dataclass(frozen=True)
class FinetuneScore:
    """Metrics, one prediction per case, and attention in a few graphs."""

    metrics: dict[str, Any]
    predictions: pa.Table
    """See `predictions_table` and, with cases as examples, `identified`: of a question the text of the right
    choice, and the numbers of right and given choice; of a pair its class and the probability of class 1; of
    a query nDCG@10 as the score."""
    graphs: GraphAttention | None = None
    """None for a model without attention in its graphs."""

    def save(self, folder: Path) -> None:
        """Write metrics.json, predictions.parquet and, if any, the attention in graphs."""
        write_metrics(folder, self.metrics)
        pq.write_table(self.predictions, folder / PREDICTIONS)
        if self.graphs is not None:
            self.graphs.save(folder)


def score_finetuned(
    config: FinetuneScoreConfig, tuned: Finetuned, data: FinetuneData, device: str = "cpu"
) -> FinetuneScore:
    """Score a model on the dev and test cases of a corpus.

    Args:
        config: how much to keep.
        tuned: the trained model.
        data: corpus, features and backbone that it was trained with; see `Finetuned.module`.
        device: where to compute.

    Raises:
        InputError: there are no dev or test cases, they are of another kind of task, or none has the words
            of a case that is to be kept.
        PermafrostError: an embedding or a score is not finite.
    """
    require_cases(tuned.config, data.corpus)
    module = tuned.module(None if data.live is None else data.live.backbone)
    trainee = GraphTextTrainee(
        tuned.config, data, module.requires_grad_(True), torch.device(device)
    )
    trainee.model.eval()
    shared: dict[str, Any] = {
        "metric": tuned.config.metric,
        "choice": tuned.choice,
        "n_parameters": trainee.model.n_parameters,
    }
    picked = picked_cases(config, data.corpus)
    if tuned.config.metric == "ndcg_at_10":
        return _search(shared, trainee, data, picked)
    found: dict[str, float] = {}
    drawn: dict[str, int] = {}
    kinds = alike(data.corpus)
    tables: list[pa.Table] = []
    are_right = np.zeros(0, np.bool_)
    of_class_1: list[NDArray[np.float64]] = []
    graphs: GraphAttention | None = None
    are_choices = data.corpus.task == "multiple_choice"
    for split in SPLITS:
        cases = data.cases(split)
        batch = as_batch(cases)
        z = trainee.embeddings(batch.items).z
        answers, probabilities = trainee.answers(z, batch)
        are_right = answers == cases.labels
        found[split] = float(np.mean(are_right))
        if are_choices:
            scores = trainee.scores(z, batch.items)[batch.cases.items.data]
            drawn[split] = n_drawn(Ragged(scores, cases.items.offsets), kinds[cases.items.data])
        shown = _right_items(data, cases)
        texts = data.corpus.items.column("text").to_numpy()[shown]
        tables.append(predictions_table(split, [texts], cases.labels, answers, probabilities))
        if probabilities is not None:
            of_class_1.append(probabilities)
        if split == "test":
            kept = shown_answers(cases, picked, answers, are_choices=are_choices)
            graphs = graph_attention(trainee, data, kept)
    test = data.cases("test")
    names = data.corpus.label_names if data.corpus.task == "classification" else ()
    metrics = {
        **shared,
        **found,
        **{f"n_{split}": len(data.cases(split)) for split in SPLITS},
        **{f"n_drawn_{split}": n for split, n in drawn.items()},
        "majority": None if are_choices else majority_rate(test.labels),
        "guess": float(np.mean(1 / test.items.lengths)) if are_choices else None,
        "class_balance": class_balance(test.labels, names) if names else None,
        **_overlap(data.corpus, kinds, lambda clean: float(np.mean(are_right[clean]))),
    }
    shares = None
    if of_class_1:
        every = np.concatenate(of_class_1)
        shares = np.stack([1 - every, every], axis=1)
    corpus = data.corpus
    table = identified(pa.concat_tables(tables), corpus.cases, corpus.digests, names, shares)
    return FinetuneScore(metrics, table, graphs)


def _overlap(
    corpus: GraphCorpus,
    kinds: NDArray[np.int64],
    measure: Callable[[NDArray[np.bool_]], float | None],
) -> dict[str, float | int | None]:
    return overlap_of_cases(items_by_split(corpus), texts_of_items(corpus), kinds, measure)


def _search(
    shared: dict[str, Any],
    trainee: GraphTextTrainee,
    data: FinetuneData,
    picked: NDArray[np.int64],
) -> FinetuneScore:
    documents = all_documents(data.corpus)
    found = searched(data.corpus, SPLITS, documents, lambda items: trainee.embeddings(items).z)
    metrics = {
        **shared,
        **{split: ndcg_at_10(some) for split, some in found.items()},
        **{f"n_{split}": len(some) for split, some in found.items()},
        **_overlap(
            data.corpus,
            alike(data.corpus),
            lambda clean: ndcg_at_10(list(compress(found["test"], clean))),
        ),
    }
    texts = data.corpus.items.column("text").to_numpy()
    tables = [_searches(split, some, texts) for split, some in found.items()]
    table = identified(pa.concat_tables(tables), None, data.corpus.digests, ())
    kept = shown_searches(data.corpus, found["test"], picked)
    return FinetuneScore(metrics, table, graph_attention(trainee, data, kept))


def _searches(split: str, found: list[Search], texts: NDArray[np.int64]) -> pa.Table:
    queries = texts[[one.query for one in found]]
    gains = np.array([one.ndcg for one in found])
    return predictions_table(split, [queries], np.ones(len(found)), gains, gains)


def _right_items(data: FinetuneData, cases: Cases) -> NDArray[np.int64]:
    """The right choice of each question; the only item of another case."""
    is_choice = data.corpus.task == "multiple_choice"
    return cases.items.data[cases.items.offsets[:-1] + (cases.labels if is_choice else 0)]
