"""A constant answer: what a method that reads nothing scores on a task, by that task's metric.

Source: none of the papers has the row. Accuracy of a constant answer is the share of a class in test, but its
F1 is not, and many a baseline of GLOT's table 1 is at it (F1 81.22 on MRPC, accuracy 56.34 on WNLI).
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from permafrost.stages.corpus.columns import TaskKind, advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import overlap_metrics
from permafrost.stages.fit.metrics import (
    METRICS,
    Metric,
    class_balance,
    evaluate,
    evaluate_part,
    majority_rate,
)
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import Scores, predictions_table
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_SPLITS = ("train", "dev", "test")
ANSWERED: tuple[TaskKind, ...] = ("classification", "pair_classification", "similarity")
"""Kinds of task that have an answer to repeat."""

_Answered = tuple[NDArray[Any], NDArray[Any]]
"""Labels and answers."""


class ConstantConfig(BaseModel):
    """The same answer to every example."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Metric = "accuracy"
    """By which the class is chosen on train, and which is reported."""


def run_constant(config: ConstantConfig, corpus: Corpus) -> Scores:
    """Choose the answer on train, report it on dev and test.

    Of classes it is the one that scores best on train, of equal ones the more frequent: by accuracy the
    majority, by F1 class 1, and by Matthews' correlation any, as all are 0. Of graded pairs it is the
    mean grade of train; a constant has no correlation, which counts as 0.

    Returns:
        metric, dev, test, n_dev, n_test, majority and class_balance (None for grades), choice, n_parameters;
        overlap, n_clean_test and clean_test (see `overlap_metrics`). Probabilities of classes are their
        shares in train, the score of a prediction that of class 1 of two.

    Raises:
        InputError: the task has neither classes nor grades, a split is missing, or the task has no such
            metric.
    """
    require_constant(config, corpus)
    labels = {s: corpus.split(s).column("label").to_numpy().astype(np.float64) for s in _SPLITS}
    classes = corpus.label_names
    answer = (
        _best_class(config.metric, labels["train"]) if classes else float(labels["train"].mean())
    )
    n_classes = len(classes)
    shares = np.bincount(labels["train"].astype(np.int64), minlength=n_classes) if classes else None

    def answered(labels: NDArray[np.float64]) -> _Answered:
        return _answered(labels, answer, is_class=bool(classes))

    sides = {s: [corpus.split(s).column(c).to_numpy() for c in _columns(corpus)] for s in _SPLITS}
    metrics: dict[str, Any] = {
        "metric": config.metric,
        **{s: evaluate(config.metric, *answered(labels[s])) for s in ("dev", "test")},
        **{f"n_{split}": len(labels[split]) for split in ("dev", "test")},
        "majority": majority_rate(labels["test"].astype(np.int64)) if classes else None,
        "class_balance": (
            class_balance(labels["test"].astype(np.int64), classes) if classes else None
        ),
        **overlap_metrics(
            corpus.examples,
            sides["test"],
            lambda clean: evaluate_part(config.metric, *answered(labels["test"][clean])),
        ),
        "choice": {"answer": classes[int(answer)] if classes else float(answer)},
        "n_parameters": 0,
    }
    tables: list[pa.Table] = []
    probabilities: list[NDArray[np.float64]] = []
    for split in ("dev", "test"):
        n = len(labels[split])
        row = None if shares is None else np.tile(shares / shares.sum(), (n, 1))
        tables.append(
            predictions_table(
                split,
                sides[split],
                labels[split],
                np.full(n, answer),
                None if row is None or n_classes != 2 else row[:, 1],
            )
        )
        probabilities += [] if row is None else [row]
    table = identified(
        pa.concat_tables(tables),
        corpus.examples,
        corpus.digests,
        classes,
        np.concatenate(probabilities) if probabilities else None,
    )
    return Scores(metrics, table)


def require_constant(config: ConstantConfig, corpus: Corpus) -> None:
    """Check everything before anything is computed.

    Raises:
        InputError: see `run_constant`.
    """
    if corpus.task not in ANSWERED:
        raise InputError(
            f"a constant answer needs classes or grades, but the task is {quoted(corpus.task)}; leave it out "
            "for this task"
        )
    if missing := [split for split in _SPLITS if split not in corpus.splits]:
        raise InputError(
            f"a constant answer needs the splits {', '.join(_SPLITS)}, but the corpus has "
            f"{', '.join(corpus.splits)}. {advice_on_splits(missing)}"
        )
    if config.metric not in METRICS[corpus.task]:
        raise InputError(
            f"metric is {quoted(config.metric)}, which a task of kind {quoted(corpus.task)} does not have; "
            f"there are {', '.join(METRICS[corpus.task])}"
        )
    if config.metric == "f1" and len(corpus.label_names) != 2:
        raise InputError(
            f"metric f1 is that of class 1 of two, but the corpus has {len(corpus.label_names)} classes; "
            "use accuracy or mcc"
        )


def _best_class(metric: Metric, labels: NDArray[np.float64]) -> float:
    counts = np.bincount(labels.astype(np.int64))
    frequent_first = map(float, np.argsort(-counts, kind="stable"))
    return max(frequent_first, key=lambda c: evaluate(metric, *_answered(labels, c, is_class=True)))


def _answered(labels: NDArray[np.float64], answer: float, *, is_class: bool) -> _Answered:
    answers = np.full(len(labels), answer)
    return (labels.astype(np.int64), answers.astype(np.int64)) if is_class else (labels, answers)


def _columns(corpus: Corpus) -> tuple[str, ...]:
    return ("text",) if corpus.task == "classification" else ("text", "text_pair")
