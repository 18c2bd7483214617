"""Errors of the best method: which classes it confuses, and its worst errors (FREEZE!, appendix 10).

The method is the one with the best score on dev, as nothing may be chosen on test; its smallest seed is
shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from permafrost.stages.metrics.predictions import MEANS, Answers, read_answers
from permafrost.stages.report.cells import CellResult, TaskCorpus

MAX_CLASSES = 12
"""For more classes a matrix would be unreadable, so the most frequent confusions are listed instead."""
N_LISTED = 15


@dataclass(frozen=True)
class WorstError:
    """One badly answered test example."""

    texts: tuple[str, ...]
    label: str
    prediction: str
    size: str
    """Size of the error, in words."""


@dataclass(frozen=True)
class Confused:
    """One class taken for another."""

    label: str
    prediction: str
    n: int
    share: float
    """Share of the examples with this label."""


@dataclass(frozen=True)
class Confusion:
    """Counts of labels against predictions."""

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """One row per label and one column per prediction; empty for more than `MAX_CLASSES` classes."""
    confused: tuple[Confused, ...]
    """For more than `MAX_CLASSES` classes the most frequent confusions, at most `N_LISTED`; otherwise
    empty."""
    n_wrong: int


@dataclass(frozen=True)
class WorstAnswers:
    """Wrong answers, the worst first."""

    rows: tuple[int, ...]
    """Rows of the answers, the worst first."""
    sizes: tuple[str, ...]
    """Size of each error, in words."""
    order: str
    """The criterion, in words."""


@dataclass(frozen=True)
class TaskErrors:
    """Errors of one method on one task."""

    task: str
    metric: str
    method: str
    seed: int
    dev: float
    """Its mean score on dev over its seeds, the highest of all methods."""
    n_test: int
    confusion: Confusion | None
    """None if labels are not classes; of questions, whose labels are places of choices, only how many are
    answered wrongly."""
    worst: tuple[WorstError, ...]
    order: str
    """The criterion by which the worst errors are ordered, in words."""


def task_errors(
    results: Sequence[CellResult],
    columns: Sequence[tuple[str, str]],
    corpora: Mapping[str, TaskCorpus],
    n_worst: int,
) -> tuple[TaskErrors, ...]:
    """Errors for every column, a (task, metric), in which a method has a score on dev and predictions.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    errors: list[TaskErrors] = []
    for task, metric in columns:
        candidates = [
            r
            for r in results
            if (r.cell.task, r.metrics.metric, r.cell.role) == (task, metric, "method")
        ]
        chosen = _best_on_dev(candidates)
        answers = None if chosen is None else read_answers(chosen.cell.folder)
        if chosen is not None and answers is not None and len(answers):
            errors.append(_errors(chosen, answers, candidates, corpora[task], n_worst))
    return tuple(errors)


def _errors(
    chosen: CellResult,
    answers: Answers,
    results: Sequence[CellResult],
    corpus: TaskCorpus,
    n_worst: int,
) -> TaskErrors:
    # Of a question the label is the place of the right choice, and the corpus names what a choice may be.
    is_question, metric = corpus.task == "multiple_choice", chosen.metrics.metric
    names = () if is_question else corpus.label_names
    if names or is_question:
        worst = worst_classes(answers, results, n_worst)
    elif metric == "mrr":
        worst = worst_partners(answers, n_worst)
    elif metric in MEANS:
        worst = worst_searches(answers, n_worst)
    else:
        worst = worst_grades(answers, metric, n_worst)
    confused = confusion(answers.labels, answers.predictions, names) if names else None
    if is_question:
        n_wrong = int((answers.labels != answers.predictions).sum())
        confused = Confusion(names=(), counts=(), confused=(), n_wrong=n_wrong)
    named = _choice if is_question else partial(_named, names)
    return TaskErrors(
        task=chosen.cell.task,
        metric=metric,
        method=chosen.cell.method,
        seed=chosen.cell.seed,
        dev=_dev([r for r in results if r.cell.method == chosen.cell.method]),
        n_test=len(answers),
        confusion=confused,
        worst=tuple(
            WorstError(
                texts=tuple(corpus.texts[int(side[row])] for side in answers.sides),
                label=named(answers.labels[row]),
                prediction=named(answers.predictions[row]),
                size=size,
            )
            for row, size in zip(worst.rows, worst.sizes, strict=True)
        ),
        order=worst.order,
    )


def _best_on_dev(results: Sequence[CellResult]) -> CellResult | None:
    """The smallest seed of the method with the highest mean on dev; the first one if methods tie."""
    return next(iter(by_dev(results)), None)


def by_dev(results: Sequence[CellResult]) -> list[CellResult]:
    """Of every method the smallest seed, the method with the highest mean on dev first; those that tie in
    their order. Their metric must be one."""
    by_method: dict[str, list[CellResult]] = {}
    for r in results:
        if r.metrics.dev is not None:
            by_method.setdefault(r.cell.method, []).append(r)
    ranked = sorted(by_method.values(), key=_dev, reverse=True)
    return [min(seeds, key=lambda r: r.cell.seed) for seeds in ranked]


def _dev(results: Sequence[CellResult]) -> float:
    return float(np.mean([r.metrics.dev for r in results if r.metrics.dev is not None]))


def _named(names: Sequence[str], value: float) -> str:
    return names[int(value)] if names else f"{value:.3g}"


def _choice(value: float) -> str:
    return f"choice {int(value) + 1}"


def confusion(
    labels: Float64[np.ndarray, " n"],
    predictions: Float64[np.ndarray, " n"],
    names: Sequence[str],
) -> Confusion:
    """Count pairs of label and prediction, which are class indices."""
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (labels.astype(np.int64), predictions.astype(np.int64)), 1)
    is_small = len(names) <= MAX_CLASSES
    return Confusion(
        names=tuple(names),
        counts=tuple(tuple(row) for row in counts.tolist()) if is_small else (),
        confused=() if is_small else _most_frequent(counts, names),
        n_wrong=int(counts.sum() - np.trace(counts)),
    )


def _most_frequent(counts: NDArray[np.int64], names: Sequence[str]) -> tuple[Confused, ...]:
    wrong = counts - np.diag(np.diag(counts))
    order: list[int] = np.argsort(-wrong, axis=None, kind="stable")[:N_LISTED].tolist()
    cells: list[tuple[int, int]] = [divmod(i, len(names)) for i in order]
    return tuple(
        Confused(names[i], names[j], int(wrong[i, j]), float(wrong[i, j] / counts[i].sum()))
        for i, j in cells
        if wrong[i, j]
    )


def worst_partners(answers: Answers, n: int) -> WorstAnswers:
    """The worst retrievals, by the rank of a text's partner."""
    order = "by the number of texts that stand before the partner"
    return _largest(answers.predictions - 1, n, order, lambda row, size: f"{size:,.0f} before it")


def worst_searches(answers: Answers, n: int) -> WorstAnswers:
    """The worst searches, by their own scores, of which 1 is the best."""
    return _largest(
        1 - answers.predictions,
        n,
        "by the score of the search",
        lambda row, _: f"score {answers.predictions[row]:.2f}",
    )


def worst_grades(answers: Answers, metric: str, n: int) -> WorstAnswers:
    """The worst grades, by the distance between prediction and label on the scale that the metric compares:
    standard scores for Pearson's correlation; ranks for Spearman's and for the mean of both.
    """
    predictions, labels = answers.predictions, answers.labels
    if metric == "pearson":
        predictions, labels = _standard(predictions), _standard(labels)
        order = "by the distance between prediction and label (error: both in standard deviations)"
        return _largest(
            np.abs(predictions - labels),
            n,
            order,
            lambda row, _: f"{predictions[row]:+.1f} for {labels[row]:+.1f}",
        )
    # Imported here: scipy.stats takes half a second, which a report without graded pairs should not pay.
    from scipy.stats import rankdata

    predictions, labels = (
        (rankdata(values) - 0.5) / len(values) for values in (predictions, labels)
    )
    order = (
        "by the distance between the ranks of prediction and label (error: both, as shares of all)"
    )
    return _largest(
        np.abs(predictions - labels),
        n,
        order,
        lambda row, _: f"{predictions[row]:.0%} for {labels[row]:.0%}",
    )


def worst_classes(answers: Answers, others: Sequence[CellResult], n: int) -> WorstAnswers:
    """Wrong answers by their probability or, if that was not kept, by how many results are wrong."""
    is_wrong = answers.predictions != answers.labels
    if answers.scores is not None:
        of_answer = np.where(answers.predictions == 1, answers.scores, 1 - answers.scores)
        order = "by the probability that the wrong class was given"
        return _largest(
            np.where(is_wrong, of_answer, 0.0), n, order, lambda _, size: f"probability {size:.3f}"
        )
    answers_of = [read_answers(r.cell.folder) for r in others]
    same = [a for a in answers_of if a is not None and a.same_examples(answers)]
    n_wrong = np.sum([a.predictions != a.labels for a in same], axis=0)
    order = f"by how many of the {len(same)} results of all methods are wrong on it"
    return _largest(
        np.where(is_wrong, n_wrong, 0.0),
        n,
        order,
        lambda _, size: f"{size:.0f} of {len(same)} wrong",
    )


def _largest(
    sizes: NDArray[np.float64], n: int, order: str, describe: Callable[[int, float], str]
) -> WorstAnswers:
    rows = [int(row) for row in np.argsort(-sizes, kind="stable")[:n] if sizes[row] > 0]
    return WorstAnswers(tuple(rows), tuple(describe(row, float(sizes[row])) for row in rows), order)


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = values - values.mean()
    return centred / (centred.std() or 1.0)
