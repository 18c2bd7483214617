"""The sentence on top of a report: which method is best, how sure that is, and what it is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.bootstrap import Difference, interval
from permafrost.stages.report.canvas import shortened
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.entries import hundredths, p_clause
from permafrost.stages.report.paired import mean_estimate, paired_difference, tested_text
from permafrost.stages.report.tables import (
    Average,
    ResultsTable,
    Row,
    averages,
    is_equal,
    scored_differently,
)

_NAME_CHARS = 60
_MOST_NAMED = 2


def finding(table: ResultsTable, config: ReportConfig, *, has_gaps: bool = False) -> str:
    """The result in one sentence, as plain text.

    Args:
        table: the results, with their intervals.
        config: which mean over the tasks is wanted, and how test sets are resampled.
        has_gaps: whether results are missing.
    """
    so_far = "Of what there is so far: " if has_gaps else ""
    if not table.compared:
        return f"{so_far}There are only controls here, and no method to compare with them."
    if split := scored_differently(table):
        return so_far + _unranked(table, split)
    mean = _mean(table, config)
    if mean is None:
        return so_far + _by_task(table, _why_no_mean(table, config))
    ranked = _Ranked(table, config, mean)
    if not ranked.methods:
        return so_far + _by_task(table, "no method was run on all of them")
    return so_far + ranked.sentence()


def _unranked(table: ResultsTable, split: dict[str, list[str]]) -> str:
    """Where no number is one of all methods: what is best on the other tasks, if there are any."""
    task, metrics = next(iter(split.items()))
    on = shortened(task, _NAME_CHARS) if len(split) == 1 else f"{len(split)} tasks"
    why = f"methods on {on} are scored by different metrics, {', '.join(metrics)}, which cannot be compared"
    if all(column.task in split for column in table.columns):
        return f"{why[0].upper()}{why[1:]}: none is called the best."
    return _by_task(table, why, [*split])


def _mean(table: ResultsTable, config: ReportConfig) -> Average | None:
    """What methods are ranked by: the only task, or the mean over all; None if there is no such mean."""
    columns = table.columns
    if len({column.task for column in columns}) == 1:
        return Average(columns[0].task, columns[0].metric, (0,))
    # Not the table's: it has none where the tasks are values of a parameter.
    means = averages(columns, config.averages)
    return next((a for a in means if a.heading == "mean"), None)


def _why_no_mean(table: ResultsTable, config: ReportConfig) -> str:
    if config.averages == "none":
        return "no mean over them was asked for"
    metrics = ", ".join(dict.fromkeys(c.metric for c in table.columns))
    return f"there is no mean over them, as their metrics differ: {shortened(metrics, 80)}"


@dataclass(frozen=True)
class _Compared:
    row: Row
    value: float
    tested: Difference | None
    """The best less this one; None if it cannot be tested."""


class _Ranked:
    """Methods and controls by one number."""

    def __init__(self, table: ResultsTable, config: ReportConfig, mean: Average) -> None:
        self._table, self._bootstrap, self._mean = table, config.bootstrap, mean
        self.methods = self._by_value(table.compared)
        """Those that have this number, and its value; the highest first."""

    def _by_value(self, rows: Sequence[Row]) -> list[tuple[Row, float]]:
        valued = [
            (row, value)
            for row in rows
            if (value := self._table.average(row, self._mean)) is not None
        ]
        return sorted(valued, key=lambda pair: -pair[1])

    def sentence(self) -> str:
        """What is best, against the next best and the best control."""
        (best, value), *others = self.methods
        equal = [row for row, v in others if self._shares(best, value, row, v)]
        behind = [(row, v) for row, v in others if row not in equal]
        names = _listed([_name(row) for row in (best, *equal)])
        reached = f"{self._metric} {hundredths(value)}{self._interval(best)}"
        if not others:
            said = f"{names} reaches {reached} {self._where}"
        else:
            how = "share the first place" if equal else "scores highest"
            said = f"{names} {how} {self._where}, with {reached}"
        clauses = [*self._against_methods(best, behind), *self._against_controls(best)]
        mark = "," if clauses[0].startswith("but ") else ":"
        return f"{said}{mark} {'; '.join(clauses)}."

    def _shares(self, best: Row, value: float, row: Row, v: float) -> bool:
        """Whether a row is as good as the best: exactly, or as printed where no test tells them apart."""
        if is_equal(v, value):
            return True
        if hundredths(v) != hundredths(value):
            return False
        tested = self._difference(best, row)
        return tested is not None and self._is_noise(tested)

    def _interval(self, row: Row) -> str:
        estimate = mean_estimate(self._table, self._mean.columns, row, self._bootstrap)
        if estimate is None:
            return ""
        found = interval(estimate, self._bootstrap.level, self._bootstrap.seed)
        if found.low == found.high:  # as where every answer is right
            return " (no interval: all resamples score alike)"
        ends = f"{hundredths(found.low)} to {hundredths(found.high)}"
        return f" ({self._bootstrap.level:.0%} interval {ends})"

    @property
    def _metric(self) -> str:
        return "a mean score of" if self._mean.metric == "mixed" else self._mean.metric

    @property
    def _where(self) -> str:
        n = len(self._mean.columns)
        on = f"on {shortened(self._mean.heading, _NAME_CHARS)}"
        on = on if n == 1 else f"on average over {n} tasks"
        n_left_out = len(self._table.compared) - len(self.methods)
        if not n_left_out:
            return on
        others = "1 more was" if n_left_out == 1 else f"{n_left_out} more were"
        return f"{on} ({others} not run on {'it' if n == 1 else 'all of them'})"

    def _against_methods(self, best: Row, others: Sequence[tuple[Row, float]]) -> list[str]:
        """Those within noise, and the next best if it is not among them."""
        if not others:
            return []
        compared = [_Compared(row, value, self._difference(best, row)) for row, value in others]
        near = [c for c in compared if c.tested is not None and self._is_noise(c.tested)]
        clauses = [] if compared[0] in near else [self._above(compared[0], best)]
        if near:
            named = [f"{_name(c.row)} ({_number(c)})" for c in near[:_MOST_NAMED]]
            more = [f"{len(near) - len(named)} more"] if len(near) > len(named) else []
            clauses.append(f"within noise of {_listed([*named, *more])}")
        return clauses

    def _against_controls(self, best: Row) -> list[str]:
        controls = self._by_value(self._table.of_role("control"))
        if not self._table.of_role("control"):
            return ["there is no control"]
        if not controls:
            return ["no control was run on all of them"]
        row, value = controls[0]
        compared = _Compared(row, value, self._difference(best, row))
        which = "the control" if len(controls) == 1 else "the best control"
        if compared.tested is not None and self._is_noise(compared.tested):
            name = shortened(row.method, _NAME_CHARS)
            return [f"but within noise of {which}, {name} ({_number(compared)})"]
        return [self._above(compared, best, f"{which}, ")]

    def _above(self, compared: _Compared, best: Row, which: str = "") -> str:
        by = self._table.average(best, self._mean)
        assert by is not None, "the best has a value"
        gap = by - compared.value
        far = f"{hundredths(abs(gap))} {'above' if gap > 0 else 'below'}"
        if hundredths(by) == hundredths(compared.value):
            far = "level as printed with"
        name = shortened(compared.row.method, _NAME_CHARS) if which else _name(compared.row)
        return f"{far} {which}{name} ({_number(compared)})"

    def _difference(self, best: Row, other: Row) -> Difference | None:
        return paired_difference(self._table, self._mean.columns, best, other, self._bootstrap)

    def _is_noise(self, tested: Difference) -> bool:
        return tested.p >= self._table.alpha


def _number(compared: _Compared) -> str:
    p = "not tested" if compared.tested is None else p_clause(tested_text(compared.tested))
    return f"{hundredths(compared.value)}, {p}"


def _name(row: Row) -> str:
    return shortened(row.label, _NAME_CHARS)


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _by_task(table: ResultsTable, why: str, left_out: Sequence[str] = ()) -> str:
    """For tasks without a mean: on how many of them a method is best, and on how many of those that may be
    chance. Some may be `left_out`."""
    places = [
        next(i for i, column in enumerate(table.columns) if column.task == task)
        for task in dict.fromkeys(c.task for c in table.columns if c.task not in left_out)
    ]
    won = {row: [i for i in places if table.is_best(row, i)] for row in table.compared}
    best = max(won, key=lambda row: len(won[row]))
    near = [i for i in won[best] if any(table.is_tied(row, i) for row in table.compared)]
    noise = f", within noise of another on {len(near)} of those" if near else ""
    others = "other tasks" if left_out else "tasks"
    return (
        f"{_name(best)} is best on {len(won[best])} of {len(places)} {others}{noise}"
        f"{_beside_controls(table, best, places)} ({why})."
    )


def _beside_controls(table: ResultsTable, best: Row, places: Sequence[int]) -> str:
    controls = table.of_role("control")
    above = held = 0
    for i in places:
        ours, theirs = best.entries[i], [e.mean for c in controls if (e := c.entries[i])]
        if ours is not None and theirs:
            held += 1
            above += ours.mean > max(theirs)
    return f", and above every control on {above} of {held}" if held else ", with no control"
