"""Methods of a table compared on shared resamples, on one task or on the mean over several.

A mean over tasks is resampled task by task: test sets are taken as independent of each other, and what
methods share on one task, its resamples, they share in the mean as well. Where some task has no predictions
to resample, as a clustering of mteb, the tasks themselves are the sample: Student's paired t. Where there are
predictions, but of other examples, nothing is tested.

Seeds of different tasks are different trainings, and their errors independent, unless tasks share the fits:
in an evaluation a head is fitted once per seed and scored on every task, so that a lucky seed is lucky on all
of them. There the scores of a seed are averaged over the tasks first, and the error is that of the means of
the seeds. Student's t sees nothing of it, as it moves all tasks together, and so it is added.

A task on which two rows are the same fits, or have the same predictions, differs by 0 whichever seeds are
drawn: it is one of the tasks of the mean, and adds no error of seeds to the difference. Where other fits have
the same predictions on all of them, the interval is as wide as what their examples may show nothing of.
"""

from collections.abc import Sequence

import numpy as np

from permafrost.stages.metrics.bootstrap import BootstrapConfig, Difference, Estimate, difference
from permafrost.stages.metrics.few_examples import unseen_share
from permafrost.stages.report.entries import hundredths, p_text
from permafrost.stages.report.standing import SeedScore
from permafrost.stages.report.tables import Average, ResultsTable, Row, is_equal

LEAST_TASKS = 3
"""Of two, their one difference would be all that is known of the spread."""
_ROUNDING = 1e-12
"""Differences below this are due to the order in which scores are added up."""


def paired_difference(
    table: ResultsTable, places: Sequence[int], one: Row, other: Row, config: BootstrapConfig
) -> Difference | None:
    """One row less another on the mean of some columns; none at all where they are the same fits on all.

    Returns:
        Over tasks where a row has no predictions in some column; None if there are fewer than three columns
        then, or where both have predictions in a column, but of different examples.
    """
    drawn = [place for place in places if not _is_same(table, place, one, other)]
    if not drawn:
        other_fits = [p for p in places if not _is_same_fit(table, p, one, other)]
        reach = _unseen(table, other_fits, one, config.level) / len(places)
        return Difference(0.0, -reach, reach, 1.0)
    pairs = [_shared(table, place, one, other) for place in places]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        missing = [place for place, pair in zip(places, pairs, strict=True) if pair is None]
        if any(_has_own(table, place, one) and _has_own(table, place, other) for place in missing):
            return None
        return _between_tasks(table, places, drawn, one, other, config)
    ours, theirs = (
        _over_tasks(table, places, drawn, row, [pair[i] for pair in known], config)
        for i, row in enumerate((one, other))
    )
    return difference(ours, theirs, config.level, config.seed)


def _between_tasks(
    table: ResultsTable,
    places: Sequence[int],
    drawn: Sequence[int],
    one: Row,
    other: Row,
    config: BootstrapConfig,
) -> Difference | None:
    from scipy.special import stdtr, stdtrit

    pairs = [(one.entries[place], other.entries[place]) for place in places]
    gaps = np.array([a.mean - b.mean for a, b in pairs if a is not None and b is not None])
    if len(gaps) < len(pairs) or len(gaps) < LEAST_TASKS:
        return None
    value, n = float(gaps.mean()), len(gaps)
    parts = [part for row in (one, other) for part in _of_shared_fits(table, drawn, row, n)]
    if np.ptp(gaps) > _ROUNDING:
        parts.append((float(gaps.std(ddof=1)) / n**0.5, n - 1.0))
    error, freedom = _together(parts)
    if not error:
        # Without spread it is as large as it is on every task.
        return Difference(value, value, value, float(abs(value) <= _ROUNDING), "tasks")
    reach = error * float(stdtrit(freedom, (1 + config.level) / 2))
    p = 2 * float(stdtr(freedom, -abs(value) / error))
    return Difference(value, value - reach, value + reach, p, "tasks")


def mean_estimate(
    table: ResultsTable, places: Sequence[int], row: Row, config: BootstrapConfig
) -> Estimate | None:
    """The mean of some columns of a row; None unless it has predictions in all of them."""
    alone = [_shared(table, place, row, row) for place in places]
    known = [pair[0] for pair in alone if pair is not None]
    if len(known) < len(alone):
        return None
    return _over_tasks(table, places, places, row, known, config)


def behind(table: ResultsTable, average: Average, config: BootstrapConfig) -> tuple[str, ...]:
    """Methods whose mean is printed as the best one is, and that are significantly worse; of means over kinds
    of task, which have no test, none."""
    means = {r: v for r in table.compared if (v := table.average(r, average)) is not None}
    if not means or average.kinds:
        return ()
    best = max(means, key=lambda row: means[row])
    alike = [r for r, v in means.items() if hundredths(v) == hundredths(means[best])]
    return tuple(
        row.method
        for row in alike
        if not is_equal(means[row], means[best])
        and (tested := paired_difference(table, average.columns, best, row, config)) is not None
        and tested.p < config.alpha
    )


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


def _over_tasks(
    table: ResultsTable,
    places: Sequence[int],
    drawn: Sequence[int],
    row: Row,
    estimates: Sequence[Estimate],
    config: BootstrapConfig,
) -> Estimate:
    """The estimate of the mean over tasks; spread over the seeds of those that are drawn as Welch and
    Satterthwaite have it."""
    if len(estimates) == 1:
        return estimates[0]
    n = len(estimates)
    of = dict(zip(places, estimates, strict=True))
    alone = [group[0] for group in _by_fit(table, drawn, row) if len(group) == 1]
    parts = [(of[place].error / n, of[place].freedom) for place in alone]
    error, freedom = _together([*parts, *_of_shared_fits(table, drawn, row, n)])
    return Estimate(
        value=float(np.mean([e.value for e in estimates])),
        values=np.mean(
            [e.values[_order(config, i, len(e.values))] for i, e in enumerate(estimates)], axis=0
        ),
        error=error,
        freedom=freedom,
        bounds=(
            float(np.mean([e.bounds[0] for e in estimates])),
            float(np.mean([e.bounds[1] for e in estimates])),
        ),
        answers=tuple(answers for e in estimates for answers in e.answers),
    )


def _together(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error of a sum of independent parts, given as error and degrees of freedom each, and its
    degrees of freedom by Welch and Satterthwaite."""
    squares = np.array([error**2 for error, _ in parts])
    if not squares.any():
        return 0.0, np.inf
    freedom = np.array([freedom for _, freedom in parts])
    return float(squares.sum() ** 0.5), float(squares.sum() ** 2 / (squares**2 / freedom).sum())


def _of_shared_fits(
    table: ResultsTable, places: Sequence[int], row: Row, n: int
) -> list[tuple[float, float]]:
    """What each fit that several of the columns share adds to the error of a mean over n, with its degrees of
    freedom."""
    found: list[tuple[float, float]] = []
    for group in _by_fit(table, places, row):
        if len(group) == 1:
            continue
        by_task = [_seeds(table, place, row) for place in group]
        seeds = sorted(set(by_task[0]).intersection(*by_task))
        if len(seeds) < 2:
            found += _moved_alike(row, group, n)
            continue
        sums = [sum(scores[seed].value for scores in by_task) for seed in seeds]
        error = float(np.std(sums, ddof=1)) / len(seeds) ** 0.5 / n
        if error > _ROUNDING:
            found.append((error, len(seeds) - 1.0))
    return found


def _moved_alike(row: Row, group: Sequence[int], n: int) -> list[tuple[float, float]]:
    """The same where the columns have no two seeds in common, as if one draw moved them all; nothing where
    each has one seed, which a note says."""
    known = [(e.sd / e.n**0.5, e.n - 1.0) for p in group if (e := row.entries[p]) and e.sd]
    return [(sum(error for error, _ in known) / n, min(f for _, f in known))] if known else []


def _by_fit(table: ResultsTable, places: Sequence[int], row: Row) -> list[list[int]]:
    """The columns of a row, those together whose scores come from the same fits."""
    if any(table.columns[place].part == "evaluations" for place in places):
        # One of these may be of the head that is scored on all of the others; averaging within seeds is
        # right for other fits too.
        return [[*places]]
    groups: list[tuple[set[str], list[int]]] = []
    for place in places:
        fits = {score.fit for score in _seeds(table, place, row).values() if score.fit is not None}
        same = next((group for group in groups if group[0] & fits), None)
        if same is None:
            groups.append((fits, [place]))
        else:
            same[0].update(fits)
            same[1].append(place)
    return [group for _, group in groups]


def _is_same(table: ResultsTable, place: int, one: Row, other: Row) -> bool:
    """Whether two rows are the same fits in a column, or have the same predictions."""
    if _is_same_fit(table, place, one, other):
        return True
    pair = _shared(table, place, one, other)
    return pair is not None and pair[0].has_answers_of(pair[1])


def _is_same_fit(table: ResultsTable, place: int, one: Row, other: Row) -> bool:
    ours, theirs = (_seeds(table, place, row) for row in (one, other))
    return bool(ours) and ours == theirs and all(s.fit is not None for s in ours.values())


def _unseen(table: ResultsTable, places: Sequence[int], row: Row, level: float) -> float:
    """The share of the examples of a column that equal predictions may show nothing of, the largest of some
    columns: together they could hide no more than the smallest of them."""
    n_drawn = [
        answers.n_drawn
        for place in places
        if (pair := _shared(table, place, row, row)) is not None
        for answers in pair[0].answers
    ]
    return unseen_share(min(n_drawn), level) if n_drawn else 0.0


def _seeds(table: ResultsTable, place: int, row: Row) -> dict[int, SeedScore]:
    return dict(table.standings[place].seeds.get(row.method, {})) if table.standings else {}


def _order(config: BootstrapConfig, task: int, n: int) -> np.ndarray:
    """The order in which a task's resamples meet those of the others: the same for every method. All are
    drawn from one seed, so that in their own order those of two tasks could go together."""
    return np.random.default_rng([config.seed, task]).permutation(n)
