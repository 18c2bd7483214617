"""Test examples from the worst answer to the best, and what is wrong with each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.metrics.predictions import Answers, read_answers
from permafrost.stages.report.cells import CellResult


@dataclass(frozen=True)
class WorstAnswers:
    """An order of wrong answers."""

    rows: tuple[int, ...]
    """Of the answers, the worst first."""
    sizes: tuple[str, ...]
    """Of each: how wrong."""
    order: str
    """What decides, in words."""


def worst_partners(answers: Answers, n: int) -> WorstAnswers:
    """By the rank that the partner of a text got."""
    order = "by the number of texts that stand before the partner"
    return _largest(answers.predictions - 1, n, order, lambda row, size: f"{size:,.0f} before it")


def worst_grades(answers: Answers, metric: str, n: int) -> WorstAnswers:
    """By the distance of prediction and label in what the metric compares.

    Pearson's correlation compares standard scores; Spearman's, and the mean of both, ranks.
    """
    given, wanted = answers.predictions, answers.labels
    if metric == "pearson":
        given, wanted = _standard(given), _standard(wanted)
        order = "by the distance between prediction and label (error: both in standard deviations)"
        return _largest(
            np.abs(given - wanted),
            n,
            order,
            lambda row, _: f"{given[row]:+.1f} for {wanted[row]:+.1f}",
        )
    # Imported here: scipy.stats takes half a second, which a report without graded pairs should not pay.
    from scipy.stats import rankdata

    given, wanted = ((rankdata(values) - 0.5) / len(values) for values in (given, wanted))
    order = (
        "by the distance between the ranks of prediction and label (error: both, as shares of all)"
    )
    return _largest(
        np.abs(given - wanted), n, order, lambda row, _: f"{given[row]:.0%} for {wanted[row]:.0%}"
    )


def worst_classes(answers: Answers, others: Sequence[CellResult], n: int) -> WorstAnswers:
    """Wrong answers by their probability; where that was not kept, by how many results are wrong."""
    is_wrong = answers.predictions != answers.labels
    if answers.scores is not None:
        of_answer = np.where(answers.predictions == 1, answers.scores, 1 - answers.scores)
        order = "by the probability that the wrong class was given"
        return _largest(
            np.where(is_wrong, of_answer, 0.0), n, order, lambda _, size: f"probability {size:.3f}"
        )
    found = [read_answers(r.cell.folder) for r in others]
    same = [a for a in found if a is not None and a.same_examples(answers)]
    n_wrong = np.sum([a.predictions != a.labels for a in same], axis=0)
    order = f"by how many of the {len(same)} results of all methods are wrong on it"
    return _largest(
        np.where(is_wrong, n_wrong, 0.0),
        n,
        order,
        lambda _, size: f"{size:.0f} of {len(same)} wrong",
    )


def _largest(
    sizes: NDArray[np.float64], n: int, order: str, said: Callable[[int, float], str]
) -> WorstAnswers:
    rows = [int(row) for row in np.argsort(-sizes, kind="stable")[:n] if sizes[row] > 0]
    return WorstAnswers(tuple(rows), tuple(said(row, float(sizes[row])) for row in rows), order)


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = values - values.mean()
    return centred / (centred.std() or 1.0)
