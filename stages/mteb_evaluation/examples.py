"""The contribution of each example to the main score, from the predictions that mteb writes.

For STS it is the cosine of a pair; for pair classification its similarity, where the score is an average
precision; for retrieval the metric of a query, by pytrec_eval as in mteb; for classification the share of
mteb's experiments that classify a text correctly. Other kinds of task have no scores by example, nor has a
mean over several splits or subsets. Clusters are of samples that mteb draws, and does not write down.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytrec_eval
from datasets import Dataset
from mteb.abstasks import (
    AbsTask,
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from permafrost.stages.metrics.example_scores import ROUNDED, ExampleScores, How
from permafrost.storage.keys import digest, text_digest

_CORRELATIONS: dict[str, How] = {"cosine_spearman": "spearman", "cosine_pearson": "pearson"}
_SIMILARITIES = {
    "cosine": ("cosine_scores", 1.0),
    "similarity": ("similarity_scores", 1.0),
    "dot": ("dot_scores", 1.0),
    "euclidean": ("euclidean_distances", -1.0),
    "manhattan": ("manhattan_distances", -1.0),
}
"""mteb's names of what its metrics of pairs are of, and the sign that makes it a similarity."""
_MEASURES = {
    "ndcg_at": "ndcg_cut",
    "map_at": "map_cut",
    "recall_at": "recall",
    "precision_at": "P",
    "hit_rate_at": "success",
}
"""pytrec_eval's names of mteb's metrics."""


def example_scores(task: AbsTask, folder: Path, metric: str, score: float) -> ExampleScores | None:
    """The contribution of each example to a score; None if it is not known.

    Args:
        task: the evaluated task.
        folder: where mteb wrote the predictions of this task alone.
        metric: name of the score.
        score: its value; if the mean over the examples differs, None is returned.
    """
    data, files = only_data(task), list(folder.iterdir())
    if data is None or len(files) != 1:
        return None
    kept: Any = json.loads(files[0].read_text(encoding="utf-8"))
    predictions = kept[task.hf_subsets[0]][task.eval_splits[0]]
    if isinstance(task, AbsTaskSTS):
        return _of_pairs(task, data, predictions, metric)
    if isinstance(task, AbsTaskPairClassification):
        return _of_matches(task, data, predictions, metric, score)
    if isinstance(task, AbsTaskRetrieval):
        scores = _of_queries(task, data, predictions, metric)
    elif isinstance(task, AbsTaskClassification) and metric == "accuracy":
        scores = _of_texts(task, data, predictions)
    else:
        return None
    if scores is None or abs(float(scores.predictions.mean()) - score) > ROUNDED:
        return None
    return scores


def _of_pairs(task: AbsTaskSTS, data: Any, predictions: Any, metric: str) -> ExampleScores | None:
    if metric not in _CORRELATIONS:
        return None
    sides = [[text_digest(text) for text in data[name]] for name in task.column_names]
    names = tuple(" ".join(pair) for pair in zip(*sides, strict=True))
    labels, cosines = _floats(data["score"]), _floats(predictions["cosine_scores"])
    return ExampleScores(names, labels, cosines, _CORRELATIONS[metric])


def _of_matches(
    task: AbsTaskPairClassification, data: Any, predictions: Any, metric: str, score: float
) -> ExampleScores | None:
    """The similarity whose average precision is the score; of `max_ap` the first that has it."""
    of, _, measured = metric.rpartition("_")
    sides = task.input1_column_name, task.input2_column_name
    if measured != "ap" or not all(isinstance(side, str) for side in sides):
        return None
    rows = rows_of(task, data)
    labels = _floats(rows[task.label_column_name])
    for name, (kept, sign) in _SIMILARITIES.items():
        if of not in (name, "max") or kept not in predictions:
            continue
        similarities = sign * _floats(predictions[kept])
        if not np.isfinite(similarities).all():
            continue
        if abs(float(average_precision_score(labels, similarities)) - score) <= ROUNDED:
            digests = [[text_digest(text) for text in rows[side]] for side in sides]
            names = tuple(" ".join(pair) for pair in zip(*digests, strict=True))
            return ExampleScores(names, labels, similarities, "average_precision")
    return None


def _of_queries(
    task: AbsTaskRetrieval,
    data: Any,
    rankings: dict[str, dict[str, float]],
    metric: str,
) -> ExampleScores | None:
    name, _, cut = metric.rpartition("_")
    if name not in _MEASURES or not cut.isdecimal():
        return None
    if task.ignore_identical_ids:
        rankings = {q: {d: s for d, s in r.items() if d != q} for q, r in rankings.items()}
    if task.skip_first_result:
        rankings = {
            q: dict(sorted(r.items(), key=lambda item: item[1], reverse=True)[1:])
            for q, r in rankings.items()
        }
    measure = f"{_MEASURES[name]}.{cut}"
    relevant: dict[str, dict[str, int]] = data["relevant_docs"]
    scored = pytrec_eval.RelevanceEvaluator(relevant, {measure}).evaluate(rankings)
    queries = sorted(scored)
    return ExampleScores(
        _query_names(queries, data),
        _floats([sum(grade > 0 for grade in relevant[q].values()) for q in queries]),
        _floats([scored[q][measure.replace(".", "_")] for q in queries]),
        "mean",
    )


def _query_names(queries: Sequence[str], data: Any) -> tuple[str, ...]:
    """The id of each query with a digest of its text, its judged documents and grades, and its candidates if
    there are any, as collections may use the same ids."""
    texts = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
    relevant: dict[str, dict[str, int]] = data["relevant_docs"]
    ranked: dict[str, list[str]] = data.get("top_ranked") or {}
    referenced = {key for q in queries for key in (*relevant[q], *ranked.get(q, ()))}
    corpus = data["corpus"]
    titles = corpus["title"] if "title" in corpus.column_names else [""] * len(corpus)
    documents = {
        key: text_digest(f"{title} {text}")
        for key, title, text in zip(corpus["id"], titles, corpus["text"], strict=True)
        if key in referenced
    }
    return tuple(
        f"{q} "
        + digest(
            [
                texts[q],
                sorted([documents.get(key, key), grade] for key, grade in relevant[q].items()),
                sorted(documents.get(key, key) for key in ranked.get(q, ())),
            ]
        )
        for q in queries
    )


def _of_texts(
    task: AbsTaskClassification, data: Any, predictions: list[list[Any]]
) -> ExampleScores | None:
    if not isinstance(task.input_column_name, str):
        return None
    gold = list(data[task.label_column_name])
    if not single_classes(gold):
        return None
    if any(len(experiment) != len(gold) for experiment in predictions):
        return None
    _, classes = np.unique(gold, return_inverse=True)
    right = [[a == b for a, b in zip(e, gold, strict=True)] for e in predictions]
    names = tuple(text_digest(text) for text in data[task.input_column_name])
    return ExampleScores(names, _floats(classes), np.mean(right, axis=0), "mean")


def _floats(values: Any) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)


def only_data(task: AbsTask) -> Any:
    """The data of the evaluated split; None for a task with several splits or subsets."""
    if len(task.eval_splits) != 1 or len(task.hf_subsets) != 1:
        return None
    return data_of(task, task.hf_subsets[0], task.eval_splits[0])


def data_of(task: AbsTask, subset: str, split: str) -> Any:
    """Rows, or for retrieval a dictionary of queries, corpus and judgements. The data of a task with one
    subset may not be keyed by subset."""
    dataset: Any = task.dataset
    return dataset.get(subset, dataset)[split]


def rows_of(task: AbsTask, data: Any) -> Any:
    """The data with a row for each example. mteb's older pairs of two classes are one row of lists."""
    if isinstance(task, AbsTaskPairClassification) and len(data) == 1:
        return Dataset.from_dict(data[0])
    return data


def n_drawn(task: AbsTask, n_rows: int) -> int:
    """How many of the rows mteb scores: of a clustering a sample, see mteb's AbsTaskClustering."""
    if not isinstance(task, AbsTaskClustering):
        return n_rows
    if task.max_fraction_of_documents_to_embed is not None:
        return int(task.max_fraction_of_documents_to_embed * n_rows)
    return min(n_rows, task.max_document_to_embed or n_rows)


def single_classes(labels: Sequence[Any]) -> bool:
    """Whether every label is a single class; some tasks have several classes, or a number, per text."""
    return all(isinstance(label, int | str) for label in labels)
