"""The sentence on top of a report: which method is best, how sure that is, and what it is compared with."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.bootstrap import Difference, interval
from permafrost.stages.report.canvas import shortened
from permafrost.stages.report.chance import chance_words
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
_MOST_FIRST = 4
_MOST_TASKS = 3
_SEPARATES = re.compile(r"[,;:“”]| and ")


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
        return so_far + _by_task(table, f" ({_why_no_mean(table, config)})")
    ranked = _Ranked(table, config, mean)
    if not ranked.methods:
        return so_far + _by_task(table, f" ({_why_no_row(table, mean)})")
    return so_far + ranked.sentence()


def _unranked(table: ResultsTable, split: dict[str, list[str]]) -> str:
    """Where no number is one of all methods: what is best on the other tasks, if there are any."""
    metrics = dict.fromkeys(metric for of_task in split.values() for metric in of_task)
    why = f"are scored by different metrics ({', '.join(metrics)}), which cannot be compared"
    others = list(dict.fromkeys(c.task for c in table.columns if c.task not in split))
    if not others:
        on = marked(next(iter(split))) if len(split) == 1 else f"{len(split)} tasks"
        return f"Methods on {on} {why}: none is called the best."
    alone = " alone" if len(others) == 1 else ""
    return _by_task(
        table,
        f"; {_some(list(split))} {'is' if len(split) == 1 else 'are'} left out, as methods there {why}",
        others,
        f"On the tasks with one metric ({_some(others)}{alone}), ",
    )


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


def _why_no_row(table: ResultsTable, mean: Average) -> str:
    if any(_is_split(table, mean, row) for row in table.compared):
        return "those that were run on all of them are controls on some"
    return "no method was run on all of them"


def _is_split(table: ResultsTable, mean: Average, row: Row) -> bool:
    """Whether a method lacks this mean only because it has two rows: it is a baseline on some of the tasks,
    and a control on the others."""
    own = [r for r in table.rows if r.method == row.method]
    is_run_on_all = all(any(r.entries[i] is not None for r in own) for i in mean.columns)
    return is_run_on_all and all(table.average(r, mean) is None for r in own)


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
        names = _named([best, *equal])
        reached = f"{self._metric} {hundredths(value)}{self._interval(best)}"
        if not others:
            said = f"{names} reaches {reached} {self._where}"
        else:
            how = "share the first place" if equal else "scores highest"
            said = f"{names} {how} {self._where}, with {reached}"
        clauses = [
            *self._against_methods(best, behind),
            *self._against_controls(best),
            *self._against_chance(value),
        ]
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
        on = f"on average over {n} tasks" if n > 1 else f"on {marked(self._mean.heading)}"
        asides = [*self._left_out]
        ranked = [row for row, _ in self.methods]
        left_out = [row for row in self._table.compared if row not in ranked]
        n_split = sum(_is_split(self._table, self._mean, row) for row in left_out)
        if n_absent := len(left_out) - n_split:
            others = "1 more was" if n_absent == 1 else f"{n_absent} more were"
            asides.append(f"{others} not run on {'it' if n == 1 else 'all of them'}")
        if n_split:
            others = "1 more is a control" if n_split == 1 else f"{n_split} more are controls"
            asides.append(f"{others} on some of them")
        return f"{on} ({'; '.join(asides)})" if asides else on

    @property
    def _left_out(self) -> list[str]:
        """The tasks that are no part of the mean, as those on which methods are trained."""
        counted = {self._table.columns[i].task for i in self._mean.columns}
        others = dict.fromkeys(c.task for c in self._table.columns if c.task not in counted)
        if not others:
            return []
        return [f"without {_some(list(others))}"]

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
        rows = self._table.of_role("control")
        controls = self._by_value(rows)
        if not rows:
            return ["there is no control"]
        if not controls:
            is_split = any(_is_split(self._table, self._mean, row) for row in rows)
            return [
                "no method is a control on all of them"
                if is_split
                else "no control was run on all of them"
            ]
        row, value = controls[0]
        compared = _Compared(row, value, self._difference(best, row))
        which = "the control" if len(controls) == 1 else "the best control"
        if compared.tested is not None and self._is_noise(compared.tested):
            name = marked(row.method)
            return [f"but within noise of {which}, {name} ({_number(compared)})"]
        return [self._above(compared, best, f"{which}, ")]

    def _against_chance(self, value: float) -> list[str]:
        """That an answer without knowledge is as good as every method, where it is."""
        columns = [self._table.columns[i] for i in self._mean.columns]
        rates = [c.chance for c in columns if c.chance is not None]
        words = chance_words((c.majority, c.guess) for c in columns)
        if words is None or len(rates) < len(columns) or self._mean.kinds:
            return []
        rate = sum(rates) / len(rates)
        if value > rate and hundredths(value) != hundredths(rate):
            return []
        return [f"no method is above {words.answer} ({hundredths(rate)})"]

    def _above(self, compared: _Compared, best: Row, which: str = "") -> str:
        by = self._table.average(best, self._mean)
        assert by is not None, "the best has a value"
        gap = by - compared.value
        far = f"{hundredths(abs(gap))} {'above' if gap > 0 else 'below'}"
        if hundredths(by) == hundredths(compared.value):
            far = "level as printed with"
        name = marked(compared.row.method) if which else _name(compared.row)
        return f"{far} {which}{name} ({_number(compared)})"

    def _difference(self, best: Row, other: Row) -> Difference | None:
        return paired_difference(self._table, self._mean.columns, best, other, self._bootstrap)

    def _is_noise(self, tested: Difference) -> bool:
        return tested.p >= self._table.alpha


def _number(compared: _Compared) -> str:
    p = "not tested" if compared.tested is None else p_clause(tested_text(compared.tested))
    return f"{hundredths(compared.value)}, {p}"


def _name(row: Row) -> str:
    return marked(row.method) + (f" ({row.role})" if row.role != "method" else "")


def _named(rows: Sequence[Row]) -> str:
    """Those that are first, up to four by name."""
    named = [_name(row) for row in rows[:_MOST_FIRST]]
    more = [f"{len(rows) - len(named)} more"] if len(rows) > len(named) else []
    return _listed([*named, *more])


def _some(tasks: Sequence[str]) -> str:
    """The first tasks by name, and how many more there are."""
    named = [marked(task) for task in tasks][:_MOST_TASKS]
    more = [f"{len(tasks) - len(named)} more"] if len(tasks) > len(named) else []
    return _listed([*named, *more])


def marked(name: str) -> str:
    """A name in quotes if it has what separates names and clauses in the sentence."""
    short = shortened(name, _NAME_CHARS)
    return f"“{short}”" if _SEPARATES.search(short) else short


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _by_task(
    table: ResultsTable, why: str, tasks: Sequence[str] | None = None, lead: str = ""
) -> str:
    """For tasks without a mean: which methods are best on most of them, on how many they share that with
    others, and on how many it may be chance. Tasks with one method alone say nothing of which is better.

    Args:
        table: the results.
        why: ends the sentence.
        tasks: the only ones that are looked at; all if None.
        lead: begins the sentence, and says which tasks these are.
    """
    columns = table.columns
    places = [
        next(i for i, column in enumerate(columns) if column.task == task)
        for task in dict.fromkeys(c.task for c in columns if tasks is None or c.task in tasks)
    ]
    if len(table.compared) == 1:
        (only,) = table.compared
        beside = _beside_controls(table, [only], places)
        n = _counted(len(places), "task")
        return f"{lead}{_name(only)} is the only method on {n}{beside}{why}."
    held = [i for i in places if sum(row.entries[i] is not None for row in table.compared) > 1]
    if not held:
        no = "no" if lead else "No"
        return f"{lead}{no} two methods were run on the same task, so that none is called the best{why}."
    won = {row: [i for i in held if table.is_best(row, i)] for row in table.compared}
    most = max(map(len, won.values()))
    best = [row for row, of_row in won.items() if len(of_row) == most]
    alone = (
        f", {_counted(len(places) - len(held), 'more')} with one method alone"
        if places != held
        else ""
    )
    is_best = f"{_named(best)} {'are each' if len(best) > 1 else 'is'} best"
    said = f"{lead}{is_best} on {most} of {_counted(len(held), 'task')}{alone}"
    theirs = sorted({i for row in best for i in won[row]})
    if len(theirs) == most or len(best) > _MOST_NAMED:
        # Of one method, or of several that are best on the same tasks, or of too many for one clause each.
        together = "" if len(theirs) == most else f", on {len(theirs)} together"
        beside = _beside_controls(table, best, held)
        return f"{said}{together}{_marks(table, won, theirs)}{beside}{why}."
    has_controls = bool(table.of_role("control"))
    each = "; ".join(
        f"{_name(row)} on {_some([columns[i].task for i in won[row]])}{_marks(table, won, won[row])}"
        f"{_beside_controls(table, [row], held) if has_controls else ''}"
        for row in best
    )
    return f"{said}{'' if has_controls else ', with no control'}: {each}{why}."


def _marks(table: ResultsTable, won: Mapping[Row, Sequence[int]], places: Sequence[int]) -> str:
    """On how many of the tasks where methods are best they share that, and may be so by chance."""
    shared = [i for i in places if sum(i in own for own in won.values()) > 1]
    near = [i for i in places if any(table.is_tied(row, i) for row in table.compared)]
    marks = {"sharing the first place": shared, "within noise of another": near}
    return "".join(
        f", {mark} {'there' if len(places) == 1 else f'on {len(at)} of those'}"
        for mark, at in marks.items()
        if at
    )


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 or noun == "more" else f"{n} {noun}s"


def _beside_controls(table: ResultsTable, best: Sequence[Row], places: Sequence[int]) -> str:
    """On how many tasks these rows, all that were run on it, are above every control."""
    controls = table.of_role("control")
    above = held = 0
    for i in places:
        ours, theirs = (
            [e.mean for row in rows if (e := row.entries[i]) is not None]
            for rows in (best, controls)
        )
        if ours and theirs:
            held += 1
            above += min(ours) > max(theirs)
    if not held:
        return ", with no control there" if controls else ", with no control"
    which = "and all of them above" if len(best) > 1 else "and above"
    return f", {which} every control on {above} of {held}"
