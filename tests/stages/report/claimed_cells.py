"""Scored cells of made-up answers, and what came of one claim about them."""

from pathlib import Path

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.report.claim_kinds import Claim
from permafrost.stages.report.claims import ClaimResult, claim_results
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.curve_claims import NO_CURVES
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.tables import tabulate
from tests.stages.report.scored_cells import answers, scored_cell, two_classes

N = 400
REPORT = ReportConfig(title="t", bootstrap=BootstrapConfig(n_resamples=400))
LABELS = two_classes(N)
PAIR = {"good": 0.9, "other": 0.7}


def cell(folder: Path, method: str, right: float, task: str = "t", draw: int = 0) -> Cell:
    return scored_cell(folder, method, LABELS, answers(right, LABELS, draw), task=task)


def came_of(cells: list[Cell], report: ReportConfig = REPORT, **claim) -> ClaimResult:
    results = read_results(cells)
    table = annotated(tabulate(results), results, report)
    said = Claim(**({"says": "c", "higher": "good", "lower": ("other",)} | claim))
    (result,) = claim_results([said], table, REPORT.bootstrap, NO_CURVES)
    return result
