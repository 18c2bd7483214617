"""Methods of a table compared on shared resamples, on one task or on the mean over several.

A mean over tasks is resampled task by task: test sets are taken as independent of each other, and what
methods share on one task, its resamples, they share in the mean as well. Where some task has no predictions
to resample, as a clustering of mteb, the tasks themselves are the sample: Student's paired t. Where there are
predictions, but of other examples, nothing is tested.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from permafrost.stages.metrics.bootstrap import BootstrapConfig, Difference, Estimate, difference
from permafrost.stages.report.entries import p_text
from permafrost.stages.report.tables import ResultsTable, Row

_LEAST_TASKS = 3
"""Of two, their one difference would be all that is known of the spread."""
_ROUNDING = 1e-12
"""Differences below this are due to the order in which scores are added up."""


def paired_difference(
    table: ResultsTable, places: Sequence[int], one: Row, other: Row, config: BootstrapConfig
) -> Difference | None:
    """One row less another on the mean of some columns.

    Returns:
        Over tasks where a row has no predictions in some column; None if there are fewer than three columns
        then, or where both have predictions in a column, but of different examples.
    """
    pairs = [_shared(table, place, one, other) for place in places]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        missing = [place for place, pair in zip(places, pairs, strict=True) if pair is None]
        if any(_has_own(table, place, one) and _has_own(table, place, other) for place in missing):
            return None
        return _between_tasks(places, one, other, config)
    ours, theirs = (_over_tasks([pair[i] for pair in known], config) for i in (0, 1))
    return difference(ours, theirs, config.level, config.seed)


def _between_tasks(
    places: Sequence[int], one: Row, other: Row, config: BootstrapConfig
) -> Difference | None:
    from scipy.stats import ttest_1samp

    pairs = [(one.entries[place], other.entries[place]) for place in places]
    gaps = np.array([a.mean - b.mean for a, b in pairs if a is not None and b is not None])
    if len(gaps) < len(pairs) or len(gaps) < _LEAST_TASKS:
        return None
    value = float(gaps.mean())
    if np.ptp(gaps) <= _ROUNDING:
        # Without spread it is as large as it is on every task.
        return Difference(value, value, value, float(abs(value) <= _ROUNDING), "tasks")
    tested: Any = ttest_1samp(gaps, 0.0)
    low, high = tested.confidence_interval(config.level)
    return Difference(value, float(low), float(high), float(tested.pvalue), "tasks")


def mean_estimate(
    table: ResultsTable, places: Sequence[int], row: Row, config: BootstrapConfig
) -> Estimate | None:
    """The mean of some columns of a row; None unless it has predictions in all of them."""
    alone = [_shared(table, place, row, row) for place in places]
    known = [pair[0] for pair in alone if pair is not None]
    return _over_tasks(known, config) if len(known) == len(alone) else None


def _has_own(table: ResultsTable, place: int, row: Row) -> bool:
    groups = table.standings[place].estimates if table.standings else ()
    return any(row.method in means for means in groups)


def tested_text(tested: Difference) -> str:
    """Its p, and what it is over where that is not the test examples: `0.03 over tasks`."""
    return p_text(tested.p) if tested.over == "examples" else f"{p_text(tested.p)} over tasks"


def _shared(
    table: ResultsTable, place: int, one: Row, other: Row
) -> tuple[Estimate, Estimate] | None:
    groups = table.standings[place].estimates if table.standings else ()
    for means in groups:
        if one.method in means and other.method in means:
            return means[one.method], means[other.method]
    return None


def _over_tasks(estimates: Sequence[Estimate], config: BootstrapConfig) -> Estimate:
    """The estimate of the mean over tasks; spread over seeds as Welch and Satterthwaite have it."""
    if len(estimates) == 1:
        return estimates[0]
    n = len(estimates)
    errors = np.array([e.error for e in estimates]) / n
    freedom = np.array([e.freedom for e in estimates])
    error = float(np.sqrt((errors**2).sum()))
    return Estimate(
        value=float(np.mean([e.value for e in estimates])),
        values=np.mean(
            [e.values[_order(config, i, len(e.values))] for i, e in enumerate(estimates)], axis=0
        ),
        error=error,
        freedom=float(error**4 / (errors**4 / freedom).sum()) if error else np.inf,
        bounds=(
            float(np.mean([e.bounds[0] for e in estimates])),
            float(np.mean([e.bounds[1] for e in estimates])),
        ),
    )


def _order(config: BootstrapConfig, task: int, n: int) -> np.ndarray:
    """The order in which a task's resamples meet those of the others: the same for every method. All are
    drawn from one seed, so that in their own order those of two tasks could go together."""
    return np.random.default_rng([config.seed, task]).permutation(n)
