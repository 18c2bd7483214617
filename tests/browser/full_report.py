"""A grid whose report has every section: six tasks, long names, curves, probes, pretraining, costs."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.report.cells import Costs
from permafrost.stages.report.claim_kinds import Claim
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.costs import Extraction
from permafrost.stages.report.pretraining import PretrainingRun
from tests.stages.report.attended_graphs import kitchen, save_items
from tests.stages.report.fake_results import Grid, make_grid
from tests.stages.report.test_alignment import align
from tests.stages.report.test_attention import stored_rows
from tests.stages.report.test_layers import tidy
from tests.stages.report.test_maps import add_maps
from tests.stages.report.test_pretraining import write_history
from tests.stages.report.test_probes import rows, table

TASKS = ("CoLA", "SST-2", "MRPC", "RTE", "WNLI", "STS-B")
METHODS = ("mean", "scorer", "glot", "a method with a long name")
MAPPED_TASKS, N_MAPPED = TASKS[:2], 60
N_PARAMETERS = 1_234_567
CATEGORIES = {"CoLA": "single", "SST-2": "single"}


def full_grid(folder: Path) -> Grid:
    """Results on disk."""
    grid = make_grid(folder, TASKS, METHODS, n_words=180)
    claims = [Claim(says=f"GLOT above {m}", higher="glot", lower=(m,)) for m in METHODS[:2]]
    bootstrap = BootstrapConfig(n_resamples=100)
    grid.config = ReportConfig(title="Every section", bootstrap=bootstrap, claims=tuple(claims))
    grid.cells = [
        replace(
            cell,
            category=CATEGORIES.get(cell.task, "pairs"),
            costs=Costs(fit_seconds=12.5, score_seconds=0.25),
        )
        for cell in grid.cells
    ]
    for i, cell in enumerate(grid.cells):
        if cell.method == "glot":
            grid.edit_metrics(i, n_parameters=N_PARAMETERS)
        if cell.task == "MRPC":
            grid.edit_metrics(i, overlap=0.14, n_clean_test=344, clean_test=0.5)
    mapped = [c for c in grid.cells if c.task in MAPPED_TASKS]
    add_maps(replace(grid, cells=mapped), np.arange(N_MAPPED) % 12)
    grid.layer_curves, grid.probes = tidy(), table(rows())
    history = folder / "pretraining.parquet"
    write_history(history)
    grid.pretrainings = [PretrainingRun("encoders", "generic", history, ("1", "2", "3", "4"))]
    for cell in grid.cells:
        if cell.method == "glot" and cell.task in MAPPED_TASKS:
            align(cell)
            right, wrong = kitchen(0, "kitchen"), kitchen(1, "desk", right=False, given=False)
            save_items(cell.folder, right, wrong)
    grid.attention = stored_rows(grid, n_blocks=12)
    grid.extractions = [Extraction("extract", 100_000, 20.0)]
    return grid
