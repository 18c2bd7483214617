"""What the controls say, and what was chosen on dev: the tables behind the results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.entries import Entry, entry, signed
from permafrost.stages.report.tables import ResultsTable

MOST_FIELDS = 6
"""Choices of more fields than these have columns only for those that differ."""


@dataclass(frozen=True)
class ControlFinding:
    """A control on one task against the majority rate."""

    control: str
    task: str
    entry: Entry
    majority: float
    standard_error: float
    """Of the majority rate on a test set of this size, sqrt(p (1 - p) / n)."""
    p: float
    """Two-sided, of a control at chance, by the normal distribution; corrected for the number of control
    results by Holm's method."""
    alpha: float
    """At which it is tested."""

    @property
    def at_chance(self) -> bool:
        """Not shown to be elsewhere."""
        return self.p >= self.alpha

    @property
    def difference(self) -> str:
        """Points above (+) or below (−) the majority rate."""
        return signed(self.entry.mean - self.majority)

    @property
    def verdict(self) -> str:
        """The finding in a few words."""
        if self.at_chance:
            return "at chance"
        above = self.entry.mean > self.majority
        return "above chance" if above else "below chance"


def control_findings(table: ResultsTable) -> tuple[ControlFinding, ...]:
    """Every control on every task for which there is a majority rate.

    Corrected by S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of
    Statistics, 1979: among many controls at chance, some are past any bound made for one.
    """
    found = [
        (row.method, column.task, entry, column.majority, column.n_test)
        for row in table.of_role("control")
        for column, entry in zip(table.columns, row.entries, strict=True)
        if entry is not None and column.majority is not None
    ]
    errors = [math.sqrt(rate * (1 - rate) / n) for *_, rate, n in found]
    alone = [
        _two_sided(entry.mean - rate, error)
        for (_, _, entry, rate, _), error in zip(found, errors, strict=True)
    ]
    return tuple(
        ControlFinding(control, task, entry, rate, error, p, table.alpha)
        for (control, task, entry, rate, _), error, p in zip(
            found, errors, _holm(alone), strict=True
        )
    )


def _two_sided(difference: float, error: float) -> float:
    """Of a normal distribution; a test set of one class leaves nothing to chance."""
    if error == 0:
        return float(difference == 0)
    return math.erfc(abs(difference) / error / math.sqrt(2))


def _holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the order given."""
    corrected, least = [1.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, (len(ps) - rank) * ps[place])
        corrected[place] = min(least, 1.0)
    return corrected


@dataclass(frozen=True)
class ChoiceRow:
    """What was chosen on dev for one method on one task, in the order of its seeds."""

    method: str
    task: str
    role: Role
    metric: str
    seeds: tuple[int, ...]
    choices: dict[str, str]
    """Field to the value chosen; `a, b, c` by seed where the seeds differ."""
    by_seed: frozenset[str]
    """Fields in which the seeds differ."""
    dev: Entry | None
    """None where a seed has no dev score."""
    test: Entry
    majority: float | None


def choice_rows(results: Sequence[CellResult]) -> tuple[ChoiceRow, ...]:
    """One row per (method, task, metric), seeds ascending inside."""
    groups: dict[tuple[str, str, str, Role], list[CellResult]] = {}
    for r in results:
        key = (r.cell.task, r.cell.method, r.metrics.metric, r.cell.role)
        groups.setdefault(key, []).append(r)
    rows: list[ChoiceRow] = []
    for (task, method, metric, role), group in groups.items():
        group.sort(key=lambda r: r.cell.seed)
        devs = [r.metrics.dev for r in group if r.metrics.dev is not None]
        fields = dict.fromkeys(name for r in group for name in r.metrics.choice)
        chosen = {f: _by_seed([r.metrics.choice.get(f) for r in group]) for f in fields}
        rows.append(
            ChoiceRow(
                method=method,
                task=task,
                role=role,
                metric=metric,
                seeds=tuple(r.cell.seed for r in group),
                choices={f: ", ".join(values) for f, values in chosen.items()},
                by_seed=frozenset(f for f, values in chosen.items() if len(values) > 1),
                dev=entry(devs) if len(devs) == len(group) else None,
                test=entry([r.metrics.test for r in group]),
                majority=group[0].metrics.majority if metric == "accuracy" else None,
            )
        )
    return tuple(rows)


def choice_fields(rows: Sequence[ChoiceRow]) -> tuple[list[str], dict[str, str]]:
    """Fields that stand in columns, and the values of those that do not: of many, those with one value
    for all rows and seeds."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for field, value in row.choices.items():
            values.setdefault(field, {})[value] = None
    if len(values) <= MOST_FIELDS:
        return list(values), {}
    differing = frozenset[str]().union(*(row.by_seed for row in rows))
    settled = {
        field: next(iter(found))
        for field, found in values.items()
        if len(found) == 1 and field not in differing
    }
    return [field for field in values if field not in settled], settled


def _by_seed(values: Sequence[str | int | float | bool | None]) -> list[str]:
    """One text for each seed, or one where they are all the same."""
    texts = [f"{v:g}" if isinstance(v, float) else "–" if v is None else str(v) for v in values]
    return texts[:1] if len(set(texts)) == 1 else texts
