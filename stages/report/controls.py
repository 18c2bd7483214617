"""Comparison of the controls that must be at chance with the majority rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.report.entries import Entry, hundredths, p_text, signed
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.tables import ResultsTable


@dataclass(frozen=True)
class ControlFinding:
    """A control on one task against the majority rate."""

    control: str
    task: str
    entry: Entry
    majority: float
    standard_error: float
    """Standard error of the majority rate on a test set of this size, sqrt(p (1 - p) / n)."""
    p: float
    """Two-sided p-value under the hypothesis that the control is at chance, by the normal approximation;
    corrected for the number of control results by Holm's method."""
    alpha: float
    """Significance level."""

    @property
    def at_chance(self) -> bool:
        """Not significantly different from chance."""
        return self.p >= self.alpha

    @property
    def difference(self) -> str:
        """Points above (+) or below (−) the majority rate."""
        return signed(self.entry.mean - self.majority)

    @property
    def verdict(self) -> str:
        """The finding in words."""
        if self.at_chance:
            return "at chance"
        above = self.entry.mean > self.majority
        return "above chance" if above else "below chance"


def control_findings(table: ResultsTable) -> tuple[ControlFinding, ...]:
    """Compare controls on every task that has a majority rate and on which they must be at chance.

    p-values are corrected by S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian
    Journal of Statistics, 1979, as some of many controls at chance exceed any bound meant for a single one.
    """
    results = [
        (row.method, column.task, entry, column.majority, column.n_test)
        for row in table.of_role("control")
        for column, entry in zip(table.columns, row.entries, strict=True)
        if entry is not None and column.majority is not None and column.task in row.at_chance
    ]
    errors = [math.sqrt(rate * (1 - rate) / n) for *_, rate, n in results]
    alone = [
        _two_sided(entry.mean - rate, error)
        for (_, _, entry, rate, _), error in zip(results, errors, strict=True)
    ]
    return tuple(
        ControlFinding(control, task, entry, rate, error, p, table.alpha)
        for (control, task, entry, rate, _), error, p in zip(
            results, errors, _holm(alone), strict=True
        )
    )


def _two_sided(difference: float, error: float) -> float:
    """Two-sided p-value of a normal distribution; a test set of one class has no standard error."""
    if error == 0:
        return float(difference == 0)
    return math.erfc(abs(difference) / error / math.sqrt(2))


def _holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the same order."""
    corrected, least = [1.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, (len(ps) - rank) * ps[i])
        corrected[i] = min(least, 1.0)
    return corrected


def controls_table(findings: Sequence[ControlFinding]) -> PlainTable:
    """Controls against the majority rate."""
    return PlainTable(
        "Controls against the majority class, × 100",
        ("control", "task", "test", "majority", "difference", "std. error", "p (Holm)", "finding"),
        tuple(
            (
                f.control,
                f.task,
                f.entry.text,
                hundredths(f.majority),
                f.difference,
                hundredths(f.standard_error),
                p_text(f.p),
                f.verdict,
            )
            for f in findings
        ),
    )
