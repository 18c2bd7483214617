"""Confidence intervals of the results, and the methods that are not significantly worse than the best.

The interval of a method is over examples and seeds (`stages.metrics.bootstrap`), that of a cell, which has
one seed, over examples. Resampling needs the predictions on test or, for an evaluation, the score of each
example. A result takes part if these were kept and reproduce the reported score; cells of a task share their
resamples if they have the same examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.metrics.bootstrap import (
    BootstrapConfig,
    Difference,
    Estimate,
    Interval,
    difference,
    estimate,
    interval,
    resample,
)
from permafrost.stages.metrics.example_scores import ROUNDED, ExampleScores, read_example_scores
from permafrost.stages.metrics.few_examples import SeedAnswers
from permafrost.stages.metrics.predictions import MEANS, Answers, read_answers
from permafrost.stages.metrics.resampling import METRICS, units
from permafrost.stages.report.cells import CellResult

_SAME_SCORE = 1e-9


_Examples = Answers | ExampleScores


@dataclass(frozen=True)
class AgainstBest:
    """A method of a column against the one with the highest score on test."""

    method: str
    best: str
    difference: Difference
    """Method minus best, each averaged over its seeds."""


@dataclass(frozen=True)
class SeedScore:
    """What one seed of a method scored."""

    value: float
    fit: str | None = None
    """As in the cell."""


@dataclass(frozen=True)
class Standing:
    """The results of resampling one task under one metric."""

    cells: dict[tuple[str, int], Interval] = field(default_factory=dict)
    """Interval over examples, by method and seed."""
    entries: dict[str, Interval] = field(default_factory=dict)
    """Interval of the mean over seeds, over examples and seeds, by method."""
    against_best: tuple[AgainstBest, ...] = ()
    """Every other method except controls."""
    n_results: int = 0
    """Number of results in the column, with or without an interval."""
    estimates: tuple[Mapping[str, Estimate], ...] = field(default=(), compare=False, repr=False)
    """Behind the intervals of the entries, by method; methods with the same test examples are together, and
    their resamples are the same."""
    seeds: Mapping[str, Mapping[int, SeedScore]] = field(
        default_factory=dict[str, Mapping[int, SeedScore]], compare=False, repr=False
    )
    """Scores by method and seed, also of those that could not be resampled."""

    @property
    def best(self) -> str | None:
        """The method with which the others were compared; None if none were."""
        return self.against_best[0].best if self.against_best else None

    @property
    def draws_seeds(self) -> bool:
        """Whether the scores of any method differ between its seeds, so that other seeds are drawn."""
        return any(e.error > 0 for means in self.estimates for e in means.values())

    def against(self, method: str) -> AgainstBest | None:
        """How a method compares with the best; None for the best itself, and if it was not compared."""
        return next((a for a in self.against_best if a.method == method), None)

    def tied(self, alpha: float) -> frozenset[str]:
        """Methods that are not significantly worse than the best."""
        return frozenset(a.method for a in self.against_best if a.difference.p >= alpha)


def standings(
    results: Sequence[CellResult], columns: Sequence[tuple[str, str]], config: BootstrapConfig
) -> tuple[Standing, ...]:
    """Resample every column, a (task, metric).

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    of_column = [
        [r for r in results if (r.cell.task, r.metrics.metric) == column] for column in columns
    ]
    return tuple(
        _standing(results_of, metric, config)
        for (_, metric), results_of in zip(columns, of_column, strict=True)
    )


@dataclass(frozen=True)
class _Resampled:
    result: CellResult
    metric: str
    """Name of the metric in `stages.metrics.resampling`."""
    value: float
    values: NDArray[np.float64]
    """One per resample."""
    predictions: NDArray[np.float64]
    """One per example."""
    together: NDArray[np.int64] | None
    """See `SeedAnswers`."""


def _standing(results: Sequence[CellResult], metric: str, config: BootstrapConfig) -> Standing:
    groups = [_resampled(group, metric, config) for group in _same_examples(results, metric)]
    resampled = [cell for group in groups for cell in group]
    cells = {
        (c.result.cell.method, c.result.cell.seed): interval(
            _estimate([c], config.level), config.level, config.seed
        )
        for c in resampled
    }
    estimates: list[Mapping[str, Estimate]] = []
    entries: dict[str, Interval] = {}
    against: tuple[AgainstBest, ...] = ()
    scores: dict[str, list[float]] = {}
    for r in results:
        scores.setdefault(r.cell.method, []).append(r.metrics.test)
    methods = {r.cell.method for r in results if r.cell.role != "control"}
    best = max((m for m in scores if m in methods), key=lambda m: np.mean(scores[m]), default=None)
    for group in groups:
        n_seeds = {method: len(values) for method, values in scores.items()}
        means = _means(group, n_seeds, config.level)
        estimates.append(means)
        entries |= {m: interval(e, config.level, config.seed) for m, e in means.items()}
        if best in means:
            against = tuple(
                AgainstBest(
                    method, best, difference(estimated, means[best], config.level, config.seed)
                )
                for method, estimated in means.items()
                if method in methods and method != best
            )
    return Standing(cells, entries, against, len(results), tuple(estimates), _by_seed(results))


def _by_seed(results: Sequence[CellResult]) -> dict[str, dict[int, SeedScore]]:
    scores: dict[str, dict[int, SeedScore]] = {}
    for r in results:
        by_seed = scores.setdefault(r.cell.method, {})
        by_seed[r.cell.seed] = SeedScore(r.metrics.test, r.cell.fit)
    return scores


def _same_examples(
    results: Sequence[CellResult], metric: str
) -> list[list[tuple[CellResult, _Examples]]]:
    groups: list[list[tuple[CellResult, _Examples]]] = []
    for r in results:
        answers = _examples(r, metric)
        if answers is None or len(answers) != r.metrics.n_test or len(answers) < 2:
            continue
        for group in groups:
            if answers.same_examples(group[0][1]):
                group.append((r, answers))
                break
        else:
            groups.append([(r, answers)])
    return groups


def _examples(result: CellResult, metric: str) -> _Examples | None:
    scores = read_example_scores(result.cell.folder)
    if scores is not None or metric not in METRICS | MEANS:
        return scores
    return read_answers(result.cell.folder)


def _resampled(
    group: Sequence[tuple[CellResult, _Examples]], metric: str, config: BootstrapConfig
) -> list[_Resampled]:
    first, near, together = group[0][1], _SAME_SCORE, None
    if isinstance(first, ExampleScores):
        metric, near = first.how, ROUNDED
    elif metric in MEANS:
        metric = "mean"
    else:
        together = units(metric, first.sides[0])
    if together is not None and not together.any():
        return []  # one query, of which nothing can be drawn
    predictions_KN = np.stack([answers.predictions for _, answers in group])
    itself, values_KB = resample(
        metric, first.labels, predictions_KN, config.n_resamples, config.seed, together
    )
    return [
        _Resampled(result, metric, float(value), values, predictions, together)
        for (result, _), value, values, predictions in zip(
            group, itself, values_KB, predictions_KN, strict=True
        )
        if abs(value - result.metrics.test) <= near
    ]


def _means(
    group: Sequence[_Resampled], n_seeds: dict[str, int], level: float
) -> dict[str, Estimate]:
    """Estimates over the seeds of each method whose seeds are all in the group."""
    by_method: dict[str, list[_Resampled]] = {}
    for cell in group:
        by_method.setdefault(cell.result.cell.method, []).append(cell)
    return {
        method: _estimate(cells, level)
        for method, cells in by_method.items()
        if len(cells) == n_seeds[method]
    }


def _estimate(seeds: Sequence[_Resampled], level: float) -> Estimate:
    values_K, values_KB = np.array([c.value for c in seeds]), np.stack([c.values for c in seeds])
    answers = SeedAnswers(np.stack([c.predictions for c in seeds]), seeds[0].together)
    return estimate(seeds[0].metric, values_K, values_KB, answers, level)
