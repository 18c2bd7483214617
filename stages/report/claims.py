"""Claims about methods, such as a paper's, tested with the results."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from permafrost.stages.metrics.bootstrap import BootstrapConfig, Difference
from permafrost.stages.report.claim_kinds import AnyClaim, Claim, CurveClaim, SameBest, Within
from permafrost.stages.report.curve_claims import Curves, held
from permafrost.stages.report.entries import DASH, hundredths, signed
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.paired import paired_difference, tested_text
from permafrost.stages.report.tables import ResultsTable, Row

Outcome = Literal[
    "confirmed",
    "contrary",
    "within noise",
    "undecided",
    "not testable",
    "not tested",
    "no mean",
    "not run",
    "holds",
    "does not hold",
]
"""`confirmed` and `contrary`: the difference is significant, with the claimed sign or the other; of scores
said to be about the same, its interval lies wholly within the points that are named, or wholly outside.
`undecided`: of such scores, that interval lies across an end of the points; the difference itself may be
significant.
`within noise`: it is not significant. `not testable`: nor is it, and half of its interval is wider than the
gap that the claim is about.
`not tested`: the predictions were not kept, or are of other examples, and there are too few tasks.
`no mean`: of metrics that differ, of which the table has none.
`not run`: a method is missing, or a task that is named; what neither method was run on counts only where its
task is named.
`holds`, `does not hold`: of curves, whose values are compared as they are."""


@dataclass(frozen=True)
class Comparison:
    """One of the comparisons that a claim is about."""

    on: str
    """The task, or `mean of 3 tasks`."""
    higher: str
    """What is said to score higher; of two said to score about the same, the first."""
    lower: str
    value: float | None
    """Of the first less the other; None if one was not run, and for curves."""
    tested: Difference | None
    outcome: Outcome


@dataclass(frozen=True)
class ClaimResult:
    """What came of a claim."""

    claim: AnyClaim
    comparisons: tuple[Comparison, ...]

    @property
    def counts(self) -> dict[Outcome, int]:
        """Number of comparisons by outcome, in the order in which they occur first."""
        return dict(Counter(c.outcome for c in self.comparisons))

    @property
    def outcome(self) -> str:
        """`confirmed`, or `confirmed in 3 of 5, within noise in 2`."""
        if len(self.counts) == 1:
            return next(iter(self.counts))
        (first, n), *others = self.counts.items()
        more = (f"{outcome} in {m}" for outcome, m in others)
        return ", ".join([f"{first} in {n} of {len(self.comparisons)}", *more])


def claim_results(
    claims: Sequence[AnyClaim],
    table: ResultsTable,
    config: BootstrapConfig,
    curves: Curves,
) -> tuple[ClaimResult, ...]:
    """Test every claim. p-values are two-sided, and not corrected for the number of comparisons.

    Args:
        claims: of an experiment, whose methods and probes they name.
        table: its results, resampled.
        config: how they were resampled.
        curves: of its probes.
    """
    rows: dict[str, Row] = {}
    for row in table.rows:
        # A method that is a control on some tasks has a row for these and one for the others.
        known = rows.get(row.method, row)
        entries = tuple(a or b for a, b in zip(known.entries, row.entries, strict=True))
        rows[row.method] = replace(known, entries=entries)
    return tuple(ClaimResult(c, tuple(_compare(c, table, rows, config, curves))) for c in claims)


def _compare(
    claim: AnyClaim,
    table: ResultsTable,
    rows: dict[str, Row],
    config: BootstrapConfig,
    curves: Curves,
) -> Iterator[Comparison]:
    match claim:
        case SameBest():
            return _same_best(claim, table, rows, config)
        case CurveClaim():
            return _of_curves(claim, curves)
        case Within():
            return _comparisons(claim, claim.method, claim.of, table, rows, config)
        case Claim():
            return _comparisons(claim, claim.higher, claim.lower, table, rows, config)


def _of_curves(claim: CurveClaim, curves: Curves) -> Iterator[Comparison]:
    outcomes: dict[bool | None, Outcome] = {True: "holds", False: "does not hold", None: "not run"}
    for found in held(claim, curves):
        yield Comparison(found.on, found.higher, found.lower, None, None, outcomes[found.holds])


def _same_best(
    claim: SameBest, table: ResultsTable, rows: dict[str, Row], config: BootstrapConfig
) -> Iterator[Comparison]:
    """The method at the setting that is best for the first ones, against the best of the rest. That one is
    picked by the very scores that are compared, which favours the contrary."""
    # By the tasks that all that were run share, so that none is better for an easier task.
    given = {i: rows[name] for i, name in enumerate(claim.by) if name in rows}
    if len(given) < len(claim.by):
        given = {}  # The missing one might be the best.
    columns = range(len(table.columns)) if given else ()
    shared = [p for p in columns if all(row.entries[p] for row in given.values())]
    found = {i: _mean(row, shared) for i, row in given.items()} if shared else {}
    chosen = claim.of[max(found, key=lambda i: found[i])] if found else claim.of[0]
    others = [name for name in claim.of if name != chosen]
    tasks = claim.tasks or tuple(dict.fromkeys(column.task for column in table.columns))
    for place, column in enumerate(table.columns):
        run = {name: e.mean for name in others if name in rows and (e := rows[name].entries[place])}
        is_run = chosen in rows and rows[chosen].entries[place] is not None
        if column.task not in tasks or not (claim.tasks or run or is_run):
            continue
        rival = max(run, key=lambda name: run[name]) if run else others[0]
        pair, places = (
            (rows.get(chosen), rows.get(rival)),
            [place] if found and run and is_run else [],
        )
        yield _compared(claim, column.heading, chosen, rival, table, pair, places, config)


def _mean(row: Row, places: Sequence[int]) -> float:
    means = [entry.mean for p in places if (entry := row.entries[p])]
    return sum(means) / len(means)


def _comparisons(
    claim: Claim | Within,
    first: str,
    others: Sequence[str],
    table: ResultsTable,
    rows: dict[str, Row],
    config: BootstrapConfig,
) -> Iterator[Comparison]:
    counted: Sequence[int] = range(len(table.columns))
    printed = next((a for a in table.averages if a.heading == "mean"), None)
    if claim.over == "mean" and not claim.tasks and printed is not None:
        counted = printed.columns
    tasks = claim.tasks or tuple(dict.fromkeys(table.columns[i].task for i in counted))
    places = {t: [i for i in counted if table.columns[i].task == t] for t in tasks}
    for other in others:
        pair = rows.get(first), rows.get(other)
        if claim.over == "mean":
            run = [i for of_task in places.values() for i in of_task if _both(pair, i)]
            if claim.tasks and not all(any(_both(pair, i) for i in p) for p in places.values()):
                run = []  # Not of the tasks that it is said of.
            on = "mean of 1 task" if len(run) == 1 else f"mean of {len(run)} tasks"
            is_mixed = printed is not None and printed.metric == "mixed"
            metrics = dict.fromkeys(table.columns[i].metric for i in run)
            if len(metrics) > 1 and not is_mixed:
                on = f"{on} ({', '.join(metrics)})"
                yield Comparison(on, first, other, None, None, "no mean")
            else:
                yield _compared(claim, on, first, other, table, pair, run, config)
            continue
        is_theirs = any(_either(pair, i) for of_task in places.values() for i in of_task)
        for task, of_task in places.items():
            shown = [i for i in of_task if _either(pair, i)]
            # Neither has a score on it: it is of other methods, or another metric of one that is theirs.
            unseen = of_task if not is_theirs or (claim.tasks and not shown) else []
            for i in shown or unseen:
                on, run = table.columns[i].heading, [i] if _both(pair, i) else []
                yield _compared(claim, on, first, other, table, pair, run, config)
            if not of_task:
                yield Comparison(task, first, other, None, None, "not run")


def _either(pair: tuple[Row | None, Row | None], place: int) -> bool:
    return any(row is not None and row.entries[place] is not None for row in pair)


def _both(pair: tuple[Row | None, Row | None], place: int) -> bool:
    return all(row is not None and row.entries[place] is not None for row in pair)


def _compared(
    claim: Claim | SameBest | Within,
    on: str,
    higher: str,
    other: str,
    table: ResultsTable,
    pair: tuple[Row | None, Row | None],
    places: Sequence[int],
    config: BootstrapConfig,
) -> Comparison:
    one, two = pair
    if not places or one is None or two is None:
        return Comparison(on, higher, other, None, None, "not run")
    gaps = [a.mean - b.mean for i in places if (a := one.entries[i]) and (b := two.entries[i])]
    value = sum(gaps) / len(gaps)
    tested = paired_difference(table, places, one, two, config)
    return Comparison(on, higher, other, value, tested, _outcome(claim, tested, table.alpha))


def _outcome(claim: Claim | SameBest | Within, tested: Difference | None, alpha: float) -> Outcome:
    if tested is None:
        return "not tested"
    if isinstance(claim, Within):
        return _about_the_same(100 * tested.low, 100 * tested.high, claim.points)
    if tested.p < alpha:
        return "confirmed" if tested.value > 0 else "contrary"
    is_wide = claim.gap is not None and 100 * (tested.high - tested.low) / 2 > claim.gap
    return "not testable" if is_wide else "within noise"


def _about_the_same(low: float, high: float, points: float) -> Outcome:
    """By the interval of the difference: two scores that do not differ significantly may still lie apart."""
    if -points <= low and high <= points:
        return "confirmed"
    return "contrary" if low > points or high < -points else "undecided"


def claims_table(results: Sequence[ClaimResult], level: float) -> PlainTable:
    """Every comparison of every claim."""
    return PlainTable(
        "Claims, differences × 100",
        ("claim", "on", "first", "second", "outcome", "difference", f"{level:.0%} interval", "p"),
        tuple(
            (
                claim_text(result.claim),
                c.on,
                c.higher,
                c.lower,
                c.outcome,
                DASH if c.value is None else signed(c.value),
                interval_text(c),
                DASH if c.tested is None else tested_text(c.tested),
            )
            for result in results
            for c in result.comparisons
        ),
        n_names=5,
    )


def claim_text(claim: AnyClaim) -> str:
    """What it says, with the points of one that says about the same, unless its words have them."""
    if not isinstance(claim, Within):
        return claim.says
    points = f"{claim.points:g} {'point' if claim.points == 1 else 'points'}"
    # As whole words: 11 points are not 1 point, nor is 1.5.
    named = re.search(rf"(?<![\d.,]){claim.points:g}\s+points?\b", claim.says)
    return claim.says if named else f"{claim.says} (within {points})"


def interval_text(comparison: Comparison) -> str:
    """The interval of the difference, or a dash."""
    if (tested := comparison.tested) is None:
        return DASH
    return f"{hundredths(tested.low)} to {hundredths(tested.high)}"


def claims_summary(results: Sequence[ClaimResult]) -> list[dict[str, Any]]:
    """JSON for listings; differences are fractions."""
    return [
        {
            "says": result.claim.says,
            "kind": result.claim.kind,
            "points": result.claim.points if isinstance(result.claim, Within) else None,
            "outcome": result.outcome,
            "comparisons": [
                {
                    "on": c.on,
                    "higher": c.higher,
                    "lower": c.lower,
                    "outcome": c.outcome,
                    "difference": c.value,
                    "interval": None if c.tested is None else [c.tested.low, c.tested.high],
                    "p": None if c.tested is None else c.tested.p,
                    "over": None if c.tested is None else c.tested.over,
                }
                for c in result.comparisons
            ],
        }
        for result in results
    ]
