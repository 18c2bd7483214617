"""Under the results: what marks mean, what was averaged, and which test sets are too small."""

from collections.abc import Sequence
from dataclasses import replace

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.report.averages import Average, averages
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.clean import overlap_note
from permafrost.stages.report.config import CurveAxis, ReportConfig
from permafrost.stages.report.convergence import unfinished_note
from permafrost.stages.report.entries import DASH, hundredths
from permafrost.stages.report.evaluated_texts import trained_texts_note
from permafrost.stages.report.history import LearningCurve
from permafrost.stages.report.standing import Standing, standings
from permafrost.stages.report.tables import TIED, Column, ResultsTable

ONE_EXAMPLE = 0.003
"""A test set is small if one of its examples is worth more of the metric."""
HALF_WIDTH = 0.03
"""A test set is small if half of an interval is wider."""
FEW_SEEDS = 5
"""With fewer, seeds alone make an interval more than 1.4 times as wide as a known spread of theirs would."""
_MEANS_OF_EXAMPLES = ("accuracy", "mrr")


def annotated(
    table: ResultsTable,
    results: Sequence[CellResult],
    config: ReportConfig,
    curves: Sequence[LearningCurve] = (),
) -> ResultsTable:
    """The table with intervals, comparisons, means over tasks, and all that has to be said of them.

    `curves` say how methods were trained.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    columns, bootstrap = table.columns, config.bootstrap
    found = standings(results, [(c.task, c.metric) for c in columns], bootstrap)
    is_averaged = config.averages != "none" and not isinstance(config.x_axis, CurveAxis)
    means = averages(columns, config.averages) if is_averaged else ()
    return replace(
        table,
        standings=found,
        alpha=bootstrap.alpha,
        averages=means,
        notes=(
            *unfinished_note(curves, [row.method for row in table.of_role("control")]),
            *marks_note(found, bootstrap),
            *few_seeds_note(results, found),
            *(averages_note(columns, means) if is_averaged else ()),
            *small_sets_note(replace(table, standings=found), bootstrap),
            *overlap_note(columns),
            *trained_texts_note(results),
        ),
    )


def marks_note(standings: Sequence[Standing], config: BootstrapConfig) -> tuple[str, ...]:
    """How the best of each column was compared with the others, if it was."""
    n_comparisons = sum(len(s.against_best) for s in standings)
    n_results = sum(s.n_results for s in standings)
    n_missing = n_results - sum(len(s.cells) for s in standings)
    notes: list[str] = []
    if n_comparisons:
        notes.append(
            f"{TIED}: the difference to the best of the column is not significant at {config.alpha:g} "
            "(paired bootstrap over the test examples, metrics averaged over seeds, with other seeds drawn "
            f"in each of {config.n_resamples:,} resamples, two-sided; "
            f"{_counted(n_comparisons, 'comparison')}, not corrected for their number). The best "
            "is the one with the highest score on test, which favours it; nothing was chosen by these scores."
        )
    if 0 < n_missing < n_results:
        notes.append(
            f"{n_missing} of {n_results} results take no part in that: predictions that give their score "
            "were not kept."
        )
    return tuple(notes)


def few_seeds_note(results: Sequence[CellResult], standings: Sequence[Standing]) -> tuple[str, ...]:
    """What the seeds of trained methods can show where they are few, if anything was compared."""
    if not any(s.against_best for s in standings):
        return ()
    seeds: dict[str, set[int]] = {}
    for r in results:
        if r.cell.role != "control" and r.cell.loss is not None:
            seeds.setdefault(r.cell.method, set()).add(r.cell.seed)
    fewest = min(map(len, seeds.values()), default=FEW_SEEDS)
    if fewest == 1:
        alone = ", ".join(method for method, found in seeds.items() if len(found) == 1)
        return (
            f"One seed of {alone}: how far another training would differ is not in the comparisons; give "
            "`seeds` several.",
        )
    if fewest < FEW_SEEDS:
        return (
            f"{fewest} seeds are few: where they lie far apart, only large differences can be significant.",
        )
    return ()


def averages_note(columns: Sequence[Column], averages: Sequence[Average]) -> tuple[str, ...]:
    """What the means are of, or why there is none."""
    tasks = dict.fromkeys(c.task for c in columns)
    if len(tasks) < 2:
        return ()
    if averages:
        of = "; ".join(
            f"{a.heading}: {len(a.kinds)} kinds"
            if a.kinds
            else f"{a.heading}: {len(a.columns)} tasks"
            for a in averages
        )
        return (
            f"Means over tasks are unweighted ({of}); {DASH} where a method was not run on all of them.",
        )
    metrics = ", ".join(dict.fromkeys(c.metric for c in columns))
    return (f"There is no mean over tasks, as their metrics differ ({metrics}).",)


def small_sets_note(table: ResultsTable, config: BootstrapConfig) -> tuple[str, ...]:
    """Test sets on which small differences of methods mean nothing, if there are any."""
    small: list[str] = []
    for place, column in enumerate(table.columns):
        methods = {row.method for row in table.of_role("method")}
        # Of single seeds: how far seeds lie apart is no matter of the test set.
        of_seeds = table.standings[place].cells.items() if table.standings else ()
        widest = max((i.half_width for (m, _), i in of_seeds if m in methods), default=None)
        one = 1 / column.n_test if column.metric in _MEANS_OF_EXAMPLES and column.n_test else 0.0
        if one <= ONE_EXAMPLE and (widest is None or widest <= HALF_WIDTH):
            continue
        worth = f" of {100 * one:.2f} points" if one else ""
        reach = "" if widest is None else f", ±{hundredths(widest)}"
        small.append(f"{column.heading} ({column.n_test:,} examples{worth}{reach})")
    if not small:
        return ()
    return (
        f"Too small to tell close scores apart (half of the widest {config.level:.0%} interval behind the "
        f"size): {'; '.join(small)}.",
    )


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
