"""From the predictions that mteb keeps to what each example adds to the main score.

Of STS the cosine of a pair; of searches the metric of a query, by pytrec_eval as in mteb; of classification
the share of mteb's experiments that answer a text correctly. Other kinds have no score by example, nor has
a mean over several splits or subsets.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytrec_eval
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS
from numpy.typing import NDArray

from stages.example_scores import ROUNDED, ExampleScores, How
from storage.keys import digest, text_digest

_CORRELATIONS: dict[str, How] = {"cosine_spearman": "spearman", "cosine_pearson": "pearson"}
_MEASURES = {
    "ndcg_at": "ndcg_cut",
    "map_at": "map_cut",
    "recall_at": "recall",
    "precision_at": "P",
    "hit_rate_at": "success",
}
"""Metrics of mteb to those of pytrec_eval."""


def example_scores(task: AbsTask, folder: Path, metric: str, score: float) -> ExampleScores | None:
    """What each example adds to a score; None where that is not known.

    Args:
        task: as it was evaluated.
        folder: where mteb wrote the predictions of this task alone.
        metric: name of the score.
        score: its value. Where the mean over the examples is another, nothing is returned.
    """
    if len(task.eval_splits) != 1 or len(task.hf_subsets) != 1:
        return None
    split, subset = task.eval_splits[0], task.hf_subsets[0]
    files = list(folder.iterdir())
    if len(files) != 1:
        return None
    predictions: Any = json.loads(files[0].read_text(encoding="utf-8"))[subset][split]
    dataset: Any = task.dataset
    data: Any = dataset.get(subset, dataset)[split]
    if isinstance(task, AbsTaskSTS):
        return _of_pairs(task, data, predictions, metric)
    if isinstance(task, AbsTaskRetrieval):
        texts = dict(zip(data["queries"]["id"], data["queries"]["text"], strict=True))
        found = _of_queries(task, texts, data["relevant_docs"], predictions, metric)
    elif isinstance(task, AbsTaskClassification) and metric == "accuracy":
        found = _of_texts(task, data, predictions)
    else:
        return None
    if found is None or abs(float(found.predictions.mean()) - score) > ROUNDED:
        return None
    return found


def _of_pairs(task: AbsTaskSTS, data: Any, predictions: Any, metric: str) -> ExampleScores | None:
    if metric not in _CORRELATIONS:
        return None
    sides = [[text_digest(text) for text in data[name]] for name in task.column_names]
    names = tuple(" ".join(pair) for pair in zip(*sides, strict=True))
    labels, cosines = _floats(data["score"]), _floats(predictions["cosine_scores"])
    return ExampleScores(names, labels, cosines, _CORRELATIONS[metric])


def _of_queries(
    task: AbsTaskRetrieval,
    texts: dict[str, Any],
    relevant: dict[str, dict[str, int]],
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
    scored = pytrec_eval.RelevanceEvaluator(relevant, {measure}).evaluate(rankings)
    queries = sorted(scored)
    return ExampleScores(
        tuple(_query_name(q, texts[q], relevant[q]) for q in queries),
        _floats([sum(grade > 0 for grade in relevant[q].values()) for q in queries]),
        _floats([scored[q][measure.replace(".", "_")] for q in queries]),
        "mean",
    )


def _query_name(key: str, text: Any, grades: dict[str, int]) -> str:
    """The id, and a digest of what is asked and how it is judged: ids come again in other collections."""
    return f"{key} {digest([text, sorted(grades.items())])}"


def _of_texts(
    task: AbsTaskClassification, data: Any, predictions: list[list[Any]]
) -> ExampleScores | None:
    if not isinstance(task.input_column_name, str):
        return None
    gold = list(data[task.label_column_name])
    if not all(isinstance(label, int | str) for label in gold):  # a text with several
        return None
    if any(len(experiment) != len(gold) for experiment in predictions):
        return None
    _, classes = np.unique(gold, return_inverse=True)
    right = [[a == b for a, b in zip(e, gold, strict=True)] for e in predictions]
    names = tuple(text_digest(text) for text in data[task.input_column_name])
    return ExampleScores(names, _floats(classes), np.mean(right, axis=0), "mean")


def _floats(values: Any) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)
