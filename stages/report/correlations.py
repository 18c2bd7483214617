"""Pearson's and Spearman's correlation of every method on graded pairs, whichever of them is its metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.stages.metrics.predictions import read_answers
from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult, TaskCorpus
from permafrost.stages.report.entries import DASH, Entry, entry, hundredths
from permafrost.stages.report.markup import PlainTable

NAMES = ("Pearson", "Spearman")


@dataclass(frozen=True)
class CellCorrelations:
    """Predictions of one cell on test against the grades."""

    method: str
    task: str
    seed: int
    role: Role
    values: tuple[float, float]
    """By `NAMES`."""


def cell_correlations(
    results: Sequence[CellResult], corpora: Mapping[str, TaskCorpus]
) -> tuple[CellCorrelations, ...]:
    """Those of every cell on graded pairs whose predictions were kept; 0 where all predictions are equal.

    Raises:
        CorruptDataError: a file of predictions cannot be read.
    """
    found: list[CellCorrelations] = []
    for r in results:
        corpus = corpora.get(r.cell.task)
        if corpus is None or corpus.task != "similarity":
            continue
        answers = read_answers(r.cell.folder)
        if answers is not None and len(answers):
            values = tuple(c(answers.predictions, answers.labels) for c in (pearson, spearman))
            cell = r.cell
            found.append(
                CellCorrelations(
                    cell.method, cell.task, cell.seed, cell.role, (values[0], values[1])
                )
            )
    return tuple(found)


def correlations_table(found: Sequence[CellCorrelations]) -> PlainTable:
    """A row for each method, methods first, and two columns for each task: means over seeds."""
    tasks = tuple(dict.fromkeys(c.task for c in found))
    roles: tuple[Role, ...] = ("method", "baseline", "control")
    entries = _entries(found)
    has_spread = any(e.sd is not None for pair in entries.values() for e in pair)

    def text(number: Entry) -> str:
        return number.text if has_spread else hundredths(number.mean)

    def printed(method: str, role: Role, task: str) -> tuple[str, ...]:
        pair = entries.get((method, role, task))
        return (DASH, DASH) if pair is None else tuple(map(text, pair))

    rows = [
        (
            method if role == "method" else f"{method} ({role})",
            *(cell for task in tasks for cell in printed(method, role, task)),
        )
        for role in roles
        for method in dict.fromkeys(c.method for c in found if c.role == role)
    ]
    spread = ", mean ± sample standard deviation over seeds" if has_spread else ""
    header = ("method", *(f"{task} · {name}" for task in tasks for name in NAMES))
    return PlainTable(f"Both correlations on test × 100{spread}", header, tuple(rows), n_names=1)


def correlations_summary(found: Sequence[CellCorrelations]) -> list[dict[str, Any]]:
    """JSON for listings: a mean over seeds for each method, task and correlation."""
    return [
        {
            "method": method,
            "task": task,
            **{name.lower(): e.mean for name, e in zip(NAMES, pair, strict=True)},
        }
        for (method, _, task), pair in _entries(found).items()
    ]


def _entries(
    found: Sequence[CellCorrelations],
) -> dict[tuple[str, Role, str], tuple[Entry, Entry]]:
    """Both over seeds, by method, role and task."""
    grouped: dict[tuple[str, Role, str], list[tuple[float, float]]] = {}
    for c in found:
        grouped.setdefault((c.method, c.role, c.task), []).append(c.values)
    return {
        key: (entry([a for a, _ in pairs]), entry([b for _, b in pairs]))
        for key, pairs in grouped.items()
    }
