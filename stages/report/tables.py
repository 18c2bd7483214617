"""Results as a table: one row per method or control, one column per task, mean and spread over seeds.

Numbers are fractions; they are printed times 100 with one decimal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from permafrost.stages.metrics.bootstrap import Interval
from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult, Part
from permafrost.stages.report.chance import ChanceWords, chance_rate, chance_words
from permafrost.stages.report.config import AverageRule
from permafrost.stages.report.entries import DASH, Entry, entry, hundredths, p_text, signed
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.standing import Standing

_MOST_CLASSES = 3
"""Up to this many classes their shares are listed; of more, the range is given."""
_ROUNDING = 1e-12
_OF_KINDS = ("mteb", "evaluations")
"""Rules with a mean over kinds of task."""
PrintedMark = Literal["plain", "best", "tied"]
"""`best`: bold; `tied`: not the best, but not significantly worse either."""


@dataclass(frozen=True)
class Column:
    """One task under one metric."""

    task: str
    metric: str
    heading: str
    """The task; with its metric when the task has several."""
    majority: float | None
    n_test: int
    category: str | None = None
    """Kind of the task."""
    part: Part = "tasks"
    class_balance: dict[str, float] | None = None
    """Share of each class in test."""
    overlap: float | None = None
    """Share of test examples that share a text with train."""
    test_in_dev: float | None = None
    """Share of test examples that are in dev too."""
    dev_in_train: float | None = None
    """Share of dev examples that are in train too."""
    guess: float | None = None
    """Of multiple choice, in the place of the majority rate."""

    @property
    def chance(self) -> float | None:
        """The accuracy of an answer without knowledge; None for other metrics."""
        return chance_rate(self.majority, self.guess)

    @property
    def balance_text(self) -> str:
        """Shares of the classes in test, in order: `38.8 / 61.2`; for many, `77 classes, 0.6 to 1.9`."""
        if self.class_balance is None:
            return DASH
        shares = list(self.class_balance.values())
        if len(shares) <= _MOST_CLASSES:
            return " / ".join(map(hundredths, shares))
        return f"{len(shares)} classes, {hundredths(min(shares))} to {hundredths(max(shares))}"


@dataclass(frozen=True)
class Row:
    """One method, baseline or control."""

    method: str
    role: Role
    entries: tuple[Entry | None, ...]
    """One per column; None if the method was not run."""
    seeds: tuple[int, ...]
    n_parameters: tuple[int, int]
    """Smallest and largest number over the results."""
    at_chance: tuple[str, ...] = ()
    """Of a control: the tasks on which it gets nothing from which the answer can be learnt."""

    @property
    def label(self) -> str:
        """The name, with the role unless it is a method."""
        return self.method if self.role == "method" else f"{self.method} ({self.role})"

    @property
    def n_seeds(self) -> int:
        """Number of seeds of the task that has most."""
        return max(e.n for e in self.entries if e is not None)


@dataclass(frozen=True)
class Printed:
    """A number as printed."""

    text: str
    mark: PrintedMark


@runtime_checkable
class ScoredTask(Protocol):
    """A task under a metric."""

    @property
    def task(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def category(self) -> str | None: ...
    @property
    def part(self) -> Part: ...


@dataclass(frozen=True)
class Average:
    """An unweighted mean over tasks."""

    heading: str
    metric: str
    """The metric of the tasks, or `mixed`."""
    columns: tuple[int, ...]
    """Indices of the columns that are averaged."""
    kinds: tuple[tuple[int, ...], ...] = ()
    """The columns by kind of task, if kinds have equal weight; empty if tasks do."""
    behind: tuple[str, ...] = ()
    """Methods whose mean is printed as the best one is, and that are significantly worse."""


@dataclass(frozen=True)
class ResultsTable:
    """Methods first, then baselines, then controls, each in order of first appearance."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    standings: tuple[Standing, ...] = ()
    """The results of resampling each column; empty if no test set was resampled."""
    alpha: float = 0.05
    """Significance level of its tests."""
    averages: tuple[Average, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences printed below the table."""

    def of_role(self, role: Role) -> tuple[Row, ...]:
        """The rows with this role."""
        return tuple(row for row in self.rows if row.role == role)

    @property
    def compared(self) -> tuple[Row, ...]:
        """The rows among which the best is sought: all except controls."""
        return tuple(row for row in self.rows if row.role != "control")

    def is_best(self, row: Row, column: int) -> bool:
        """Whether no method has a higher mean in this column, at the printed precision, unless the
        difference behind it is significant."""
        entry = row.entries[column]
        if entry is None or row.role == "control":
            return False
        others = [e.mean for r in self.compared if (e := r.entries[column]) is not None]
        if is_equal(entry.mean, max(others)):
            return True
        if hundredths(entry.mean) != hundredths(max(others)):
            return False
        against = self.standings[column].against(row.method) if self.standings else None
        return against is None or against.difference.p >= self.alpha

    def is_tied(self, row: Row, column: int) -> bool:
        """Whether the row is not the best of the column, but not significantly worse."""
        if not self.standings or self.is_best(row, column):
            return False
        return row.method in self.standings[column].tied(self.alpha)

    def interval(self, row: Row, column: int) -> Interval | None:
        """Confidence interval of the entry, or None."""
        if not self.standings or row.entries[column] is None:
            return None
        return self.standings[column].entries.get(row.method)

    def average(self, row: Row, average: Average) -> float | None:
        """Mean over tasks; None if one of them was not run."""
        means = {i: e.mean for i in average.columns if (e := row.entries[i]) is not None}
        if len(means) < len(average.columns):
            return None
        groups = average.kinds or [(i,) for i in average.columns]
        return float(np.mean([np.mean([means[i] for i in group]) for group in groups]))

    def is_best_average(self, row: Row, average: Average) -> bool:
        """Whether no method has a higher mean over tasks, at the printed precision, unless the difference
        behind it is significant."""
        mean = self.average(row, average)
        if mean is None or row.role == "control" or row.method in average.behind:
            return False
        means = [self.average(r, average) for r in self.compared]
        return hundredths(mean) == hundredths(max(v for v in means if v is not None))

    @property
    def chance_words(self) -> ChanceWords | None:
        """What the columns' rates of chance are called; None if no column has one."""
        return chance_words((c.majority, c.guess) for c in self.columns)

    @property
    def has_classes(self) -> bool:
        """Whether any column has shares of classes."""
        return any(c.class_balance is not None for c in self.columns)

    @property
    def has_spread(self) -> bool:
        """Whether any entry has several seeds, and so a spread."""
        return any(e is not None and e.sd is not None for row in self.rows for e in row.entries)

    @property
    def has_seeds(self) -> bool:
        """Whether anything was trained or drawn, so that seeds play a part."""
        return self.has_spread or any(any(row.n_parameters) for row in self.rows)

    @property
    def draws_seeds(self) -> bool:
        """Whether any interval has an error of seeds in it."""
        return any(s.draws_seeds for s in self.standings)

    def text(self, entry: Entry) -> str:
        """The entry as printed: with its spread, unless no entry has one."""
        return entry.text if self.has_spread else hundredths(entry.mean)

    def printed(self, row: Row) -> tuple[Printed, ...]:
        """Entries of a row and its means over tasks, as printed."""
        entries = [
            Printed(DASH, "plain") if e is None else Printed(self.text(e), self._mark(row, i))
            for i, e in enumerate(row.entries)
        ]
        means = [
            Printed(DASH, "plain")
            if (value := self.average(row, a)) is None
            else Printed(hundredths(value), "best" if self.is_best_average(row, a) else "plain")
            for a in self.averages
        ]
        return (*entries, *means)

    def _mark(self, row: Row, column: int) -> PrintedMark:
        if self.is_best(row, column):
            return "best"
        return "tied" if self.is_tied(row, column) else "plain"


def is_equal(one: float, other: float) -> bool:
    """Whether two scores differ by no more than the order in which they are added up."""
    return abs(one - other) <= _ROUNDING


def tabulate(results: Sequence[CellResult]) -> ResultsTable:
    """Mean and spread over seeds of every method on every task and metric."""
    metrics_of: dict[str, list[str]] = {}
    for r in results:
        metrics = metrics_of.setdefault(r.cell.task, [])
        if r.metrics.metric not in metrics:
            metrics.append(r.metrics.metric)
    columns = tuple(
        _column(task, metric, len(metrics) > 1, results)
        for task, metrics in metrics_of.items()
        for metric in metrics
    )
    roles: tuple[Role, ...] = ("method", "baseline", "control")
    rows: list[Row] = []
    for role in roles:
        by_method: dict[str, list[CellResult]] = {}
        for r in results:
            if r.cell.role == role:
                by_method.setdefault(r.cell.method, []).append(r)
        rows.extend(_row(name, role, columns, results_of) for name, results_of in by_method.items())
    return ResultsTable(columns, tuple(rows))


def _column(task: str, metric: str, ambiguous: bool, results: Sequence[CellResult]) -> Column:
    metrics_of = [r.metrics for r in results if (r.cell.task, r.metrics.metric) == (task, metric)]
    of_task = [r.metrics for r in results if r.cell.task == task]
    # Both are baselines for accuracy only. A result of before guesses were told has the most frequent place
    # of the right choice as its majority.
    of_accuracy = metrics_of if metric == "accuracy" else []
    guess = next((m.guess for m in of_accuracy if m.guess is not None), None)
    majority = next((m.majority for m in of_accuracy if m.majority is not None), None)
    return Column(
        task=task,
        metric=metric,
        heading=f"{task} · {metric}" if ambiguous else task,
        majority=majority if guess is None else None,
        guess=guess,
        n_test=metrics_of[0].n_test,
        category=next((r.cell.category for r in results if r.cell.task == task), None),
        part=next(r.cell.part for r in results if r.cell.task == task),
        class_balance=next((m.class_balance for m in of_task if m.class_balance), None),
        overlap=next((m.overlap for m in of_task if m.overlap is not None), None),
        test_in_dev=next((m.test_in_dev for m in of_task if m.test_in_dev is not None), None),
        dev_in_train=next((m.dev_in_train for m in of_task if m.dev_in_train is not None), None),
    )


def _row(name: str, role: Role, columns: Sequence[Column], results: Sequence[CellResult]) -> Row:
    def tests(column: Column) -> list[float]:
        task_metric = (column.task, column.metric)
        return [r.metrics.test for r in results if (r.cell.task, r.metrics.metric) == task_metric]

    sizes = [r.metrics.n_parameters for r in results]
    return Row(
        method=name,
        role=role,
        entries=tuple(entry(values) if (values := tests(c)) else None for c in columns),
        seeds=tuple(sorted({r.cell.seed for r in results})),
        n_parameters=(min(sizes), max(sizes)),
        at_chance=tuple(dict.fromkeys(r.cell.task for r in results if r.cell.must_be_at_chance)),
    )


def scored_differently(table: ResultsTable) -> dict[str, list[str]]:
    """Tasks on which some methods are scored by one metric and the others by another, with these metrics."""
    places: dict[str, list[int]] = {}
    for place, column in enumerate(table.columns):
        places.setdefault(column.task, []).append(place)
    found: dict[str, list[str]] = {}
    for task, at in places.items():
        scored = [[i for i in at if row.entries[i] is not None] for row in table.compared]
        if len(at) > 1 and all(len(own) <= 1 for own in scored):
            found[task] = [table.columns[i].metric for i in at]
    return found


def averages(columns: Sequence[ScoredTask], rule: AverageRule) -> tuple[Average, ...]:
    """A mean for each category and then one over all tasks, each of at least two tasks.

    A category that has all tasks gets no mean of its own. A task with several metrics counts with the first.
    """
    counted = [
        (i, c) for i, c in enumerate(columns) if rule != "evaluations" or c.part == "evaluations"
    ]
    first = {column.task: i for i, column in reversed(counted)}
    categories = dict.fromkeys(c.category for _, c in counted if c.category is not None)
    groups: dict[str, list[int]] = {}
    for name in categories:
        indices = [i for i, c in counted if c.category == name and first[c.task] == i]
        if len(indices) < len(first):
            groups[f"mean, {name.replace('_', ' ')}"] = indices
    groups["mean"] = sorted(first.values())
    means: list[Average] = []
    for heading, indices in groups.items():
        metrics = {columns[i].metric for i in indices}
        is_wanted = rule in ("any_metric", *_OF_KINDS) or (
            rule == "same_metric" and len(metrics) == 1
        )
        if len(indices) > 1 and is_wanted:
            metric = metrics.pop() if len(metrics) == 1 else "mixed"
            means.append(Average(heading, metric, tuple(indices)))
    kinds = tuple(tuple(i for i in groups["mean"] if columns[i].category == k) for k in categories)
    if rule in _OF_KINDS and 1 < len(kinds) < len(groups["mean"]):
        last = means[-1]
        means.append(Average("mean of kinds", last.metric, last.columns, kinds))
    return tuple(means)


def intervals_table(table: ResultsTable, level: float) -> PlainTable:
    """Confidence intervals of every result, and of its difference from the best."""
    rows: list[tuple[str, ...]] = []
    for place, column in enumerate(table.columns):
        for row in table.rows:
            if (interval := table.interval(row, place)) is None:
                continue
            against = table.standings[place].against(row.method)
            is_best = table.standings[place].best == row.method
            to_best = ("best" if is_best else DASH, DASH, DASH)
            if against is not None:
                difference = against.difference
                to_best = (
                    signed(difference.value),
                    _span(difference.low, difference.high, signed),
                    p_text(difference.p),
                )
            test = (hundredths(interval.value), _span(interval.low, interval.high, hundredths))
            rows.append((column.heading, row.method, *test, *to_best))
    header = ("task", "method", "test", "interval", "vs. best", "interval", "p")
    over = "test examples and seeds" if table.draws_seeds else "test examples"
    title = f"Test metric with its {level:.0%} interval over {over}, × 100"
    return PlainTable(title, header, tuple(rows))


def _span(low: float, high: float, printed: Callable[[float], str]) -> str:
    return f"{printed(low)} to {printed(high)}"
