"""Comparison of the controls that must be at chance with what chance gives.

Chance has a known score in two cases: in accuracy the majority rate (of multiple choice that of a guess), in
correlations (Matthews' included) 0. In other metrics, such as f1 and nDCG, it is not known, and their
controls are not tested.

Source: if labels and predictions have nothing to do with each other, any order of the labels is as likely as
the one given, and over all orders a correlation has the mean 0 and the variance 1 / (n - 1) (E. Pitman,
Significance Tests Which May Be Applied to Samples from Any Populations, II, 1937). Matthews' correlation is
Pearson's of two classes; with more, and for the mean of two correlations, that is the largest variance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.resampling import CORRELATIONS
from permafrost.stages.report.entries import Entry, hundredths, p_text, signed
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.tables import Column, ResultsTable


@dataclass(frozen=True)
class ControlFinding:
    """A control on one task against chance."""

    control: str
    task: str
    entry: Entry
    chance: float
    """The majority rate or that of a guess in accuracy, 0 in correlations."""
    standard_error: float
    """Standard error of chance on a test set of this size: sqrt(p (1 - p) / n) in accuracy, an upper
    bound where questions differ in their number of choices; 1 / sqrt(n - 1) in correlations."""
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
        """Points above (+) or below (−) chance."""
        return signed(self.entry.mean - self.chance)

    @property
    def verdict(self) -> str:
        """The finding in words."""
        if self.at_chance:
            return "at chance"
        above = self.entry.mean > self.chance
        return "above chance" if above else "below chance"


def control_findings(table: ResultsTable) -> tuple[ControlFinding, ...]:
    """Compare controls on every task where they must be at chance and a metric says where that is.

    p-values are corrected by S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian
    Journal of Statistics, 1979, as some of many controls at chance exceed any bound meant for a single one.
    """
    results = [
        (row.method, column.task, entry, *chance)
        for row in table.of_role("control")
        for column, entry in zip(table.columns, row.entries, strict=True)
        if entry is not None and column.task in row.at_chance and (chance := _chance(column))
    ]
    alone = [_two_sided(entry.mean - chance, error) for _, _, entry, chance, error in results]
    return tuple(
        ControlFinding(*result, p, table.alpha)
        for result, p in zip(results, _holm(alone), strict=True)
    )


@dataclass(frozen=True)
class UntestedControl:
    """A control on one task that is not held against chance."""

    control: str
    task: str
    metric: str
    must_be_at_chance: bool
    """False if it keeps something that tells the answer; else its metric has no known value of chance."""


def untested_controls(table: ResultsTable) -> tuple[UntestedControl, ...]:
    """The results of controls of which `control_findings` says nothing."""
    return tuple(
        UntestedControl(row.method, column.task, column.metric, column.task in row.at_chance)
        for row in table.of_role("control")
        for column, entry in zip(table.columns, row.entries, strict=True)
        if entry is not None and not (column.task in row.at_chance and _chance(column))
    )


def _chance(column: Column) -> tuple[float, float] | None:
    """The score at chance and its standard error; None where it is not known."""
    if (rate := column.chance) is not None:
        return rate, math.sqrt(rate * (1 - rate) / column.n_test)
    if column.metric in CORRELATIONS:
        return 0.0, 1 / math.sqrt(max(column.n_test - 1, 1))
    return None


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
    """Controls against chance."""
    return PlainTable(
        "Controls against chance, × 100",
        ("control", "task", "test", "chance", "difference", "std. error", "p (Holm)", "finding"),
        tuple(
            (
                f.control,
                f.task,
                f.entry.text,
                hundredths(f.chance),
                f.difference,
                hundredths(f.standard_error),
                p_text(f.p),
                f.verdict,
            )
            for f in findings
        ),
    )
