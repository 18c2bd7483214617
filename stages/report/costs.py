"""Costs of methods beside their scores, and of running the backbone; as recorded, never estimated."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.entries import DASH, Entry, entry, mean_text, seconds
from permafrost.stages.report.learning import LearningCurve
from permafrost.stages.report.markup import PlainTable


@dataclass(frozen=True)
class Extraction:
    """One run of the backbone over texts, as its artifact recorded it."""

    label: str
    n_tokens: int
    """Tokens over which the backbone was run; 0 if the store had everything."""
    seconds: float
    """Wall time, including loading the backbone and writing."""
    n_texts: int = 0
    n_cut: int = 0
    """Texts that are longer than the input, and were read without their end."""

    @property
    def tokens_per_second(self) -> float | None:
        """None if nothing was computed."""
        return self.n_tokens / self.seconds if self.n_tokens and self.seconds > 0 else None


@dataclass(frozen=True)
class CostRow:
    """One method on one task; means over seeds."""

    method: str
    task: str
    role: Role
    metric: str
    test: Entry
    n_parameters: tuple[int, int]
    """Smallest and largest number over seeds, which may choose different candidates."""
    n_pooling_parameters: tuple[int, int] | None
    """The same for the pooling alone; None if not recorded."""
    n_candidates: int | None
    """Number of settings that were trained; None if nothing is trained in epochs."""
    n_epochs: float | None
    """Total over all candidates."""
    fit_seconds: float | None
    """None if a seed has no record."""
    score_seconds: float | None


def cost_rows(
    results: Sequence[CellResult], curves: Sequence[LearningCurve]
) -> tuple[CostRow, ...]:
    """One row per (task, method, metric), in order of first appearance; no rows if no time was recorded."""
    if all(r.cell.costs.fit_seconds is None for r in results):
        return ()
    trained = {(c.method, c.task, c.metric): c.runs for c in curves}
    groups: dict[tuple[str, str, str], list[CellResult]] = {}
    for r in results:
        groups.setdefault((r.cell.method, r.cell.task, r.metrics.metric), []).append(r)
    rows: list[CostRow] = []
    for (method, task, metric), group in groups.items():
        runs = trained.get((method, task, metric), ())
        pooling = [n for r in group if (n := r.cell.costs.n_pooling_parameters) is not None]
        rows.append(
            CostRow(
                method=method,
                task=task,
                role=group[0].cell.role,
                metric=metric,
                test=entry([r.metrics.test for r in group]),
                n_parameters=_range([r.metrics.n_parameters for r in group]),
                n_pooling_parameters=_range(pooling) if len(pooling) == len(group) else None,
                n_candidates=max((run.n_candidates for run in runs), default=None),
                n_epochs=float(np.mean([run.n_epochs for run in runs])) if runs else None,
                fit_seconds=_mean([r.cell.costs.fit_seconds for r in group]),
                score_seconds=_mean([r.cell.costs.score_seconds for r in group]),
            )
        )
    return tuple(rows)


def _range(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)


def _mean(values: Sequence[float | None]) -> float | None:
    recorded = [value for value in values if value is not None]
    return float(np.mean(recorded)) if len(recorded) == len(values) else None


def costs_table(rows: Sequence[CostRow]) -> PlainTable:
    """Costs of every method."""
    means = "; means over seeds" if any(row.test.n > 1 for row in rows) else ""
    return PlainTable(
        f"Costs beside the test metric × 100{means}",
        ("task", "method", "test", "parameters", "settings", "epochs", "fit, s", "score, s"),
        tuple(
            (
                row.task,
                row.method,
                mean_text(row.test),
                DASH.join(f"{n:,}" for n in sorted(set(row.n_parameters))),
                str(row.n_candidates or DASH),
                DASH if row.n_epochs is None else f"{row.n_epochs:,.0f}",
                seconds(row.fit_seconds),
                seconds(row.score_seconds),
            )
            for row in rows
        ),
    )


def extractions_table(rows: Sequence[Extraction]) -> PlainTable:
    """Costs of running the backbone."""
    return PlainTable(
        "Runs of the backbone",
        ("extraction", "tokens", "seconds"),
        tuple((e.label, f"{e.n_tokens:,}", seconds(e.seconds)) for e in rows),
        n_names=1,
    )
