"""Where the best method is wrong: which classes it confuses, and its worst errors (FREEZE!, appendix 10).

The method is the one with the best score on dev, as nothing may be chosen on test; of its seeds the smallest
is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from permafrost.stages.metrics.predictions import Answers, read_answers
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.confusion import Confusion, confusion
from permafrost.stages.report.token_weights import TaskCorpus
from permafrost.stages.report.worst_answers import (
    WorstAnswers,
    worst_classes,
    worst_grades,
    worst_partners,
)


@dataclass(frozen=True)
class WorstError:
    """One test example that was answered badly."""

    texts: tuple[str, ...]
    label: str
    prediction: str
    size: str
    """How wrong."""


@dataclass(frozen=True)
class TaskErrors:
    """Errors of one method on one task."""

    task: str
    metric: str
    method: str
    seed: int
    dev: float
    """Its score on dev, the mean over its seeds: the best of the methods."""
    n_test: int
    confusion: Confusion | None
    """None where labels are no classes."""
    worst: tuple[WorstError, ...]
    order: str
    """What the worst errors are ordered by, in words."""


def task_errors(
    results: Sequence[CellResult],
    columns: Sequence[tuple[str, str]],
    corpora: Mapping[str, TaskCorpus],
    n_worst: int,
) -> tuple[TaskErrors, ...]:
    """Errors on every column, a (task, metric) each, where a method has a score on dev and predictions.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    found: list[TaskErrors] = []
    for task, metric in columns:
        mine = [
            r
            for r in results
            if (r.cell.task, r.metrics.metric, r.cell.role) == (task, metric, "method")
        ]
        chosen = _best_on_dev(mine)
        answers = None if chosen is None else read_answers(chosen.cell.folder)
        if chosen is not None and answers is not None and len(answers):
            found.append(_errors(chosen, answers, mine, corpora[task], n_worst))
    return tuple(found)


def _errors(
    chosen: CellResult,
    answers: Answers,
    results: Sequence[CellResult],
    corpus: TaskCorpus,
    n_worst: int,
) -> TaskErrors:
    names, metric = corpus.label_names, chosen.metrics.metric
    worst = _worst(answers, metric, results, names, n_worst)
    return TaskErrors(
        task=chosen.cell.task,
        metric=metric,
        method=chosen.cell.method,
        seed=chosen.cell.seed,
        dev=_dev([r for r in results if r.cell.method == chosen.cell.method]),
        n_test=len(answers),
        confusion=confusion(answers.labels, answers.predictions, names) if names else None,
        worst=tuple(
            WorstError(
                texts=tuple(corpus.texts[int(side[row])] for side in answers.sides),
                label=_named(answers.labels[row], names),
                prediction=_named(answers.predictions[row], names),
                size=size,
            )
            for row, size in zip(worst.rows, worst.sizes, strict=True)
        ),
        order=worst.order,
    )


def _worst(
    answers: Answers,
    metric: str,
    results: Sequence[CellResult],
    names: Sequence[str],
    n_worst: int,
) -> WorstAnswers:
    if names:
        return worst_classes(answers, results, n_worst)
    if metric == "mrr":
        return worst_partners(answers, n_worst)
    return worst_grades(answers, metric, n_worst)


def _best_on_dev(results: Sequence[CellResult]) -> CellResult | None:
    """The smallest seed of the method with the highest mean on dev; the first of equal methods."""
    by_method: dict[str, list[CellResult]] = {}
    for r in results:
        if r.metrics.dev is not None:
            by_method.setdefault(r.cell.method, []).append(r)
    best = max(by_method.values(), key=_dev, default=[])
    return min(best, key=lambda r: r.cell.seed, default=None)


def _dev(results: Sequence[CellResult]) -> float:
    return float(np.mean([r.metrics.dev for r in results if r.metrics.dev is not None]))


def _named(value: float, names: Sequence[str]) -> str:
    return names[int(value)] if names else f"{value:.3g}"
