"""What `permafrost across` writes: tables, numbers and figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from permafrost.stages.report.across import (
    Across,
    Groups,
    scores_figure,
    scores_table,
    standard_figure,
    standard_table,
)
from permafrost.stages.report.canvas import drawing, png
from permafrost.stages.report.markup import PlainTable, literal, to_markdown
from permafrost.stages.report.palette import extended
from permafrost.storage.durable import write_durably, write_json


def tables_of(across: Across, groups: Groups) -> list[PlainTable]:
    """Scores, and standard scores by group."""
    return [scores_table(across), standard_table(across, groups)]


def as_json(across: Across, groups: Groups, remarks: Sequence[str]) -> dict[str, Any]:
    """All numbers, one entry per backbone, and what is missing."""
    return {
        "methods": list(across.methods),
        "tasks": [{"task": t, "metric": across.metrics[t]} for t in across.tasks],
        "backbones": [
            {
                "backbone": run.backbone,
                "n_parameters": run.n_parameters,
                "test": {m: {t: run.tests[m, t] for t in across.tasks} for m in across.methods},
                "standard_scores": across.grouped(run, groups),
            }
            for run in across.runs
        ],
        "notes": list(remarks),
    }


def write_across(across: Across, groups: Groups, remarks: Sequence[str], folder: Path) -> None:
    """Write across.md, across.json and, of backbones whose sizes are known, figures/scores.png and
    figures/standard_scores.png."""
    said = "".join(f"\n{literal(remark)}\n" for remark in remarks)
    write_durably(folder / "across.md", (to_markdown(tables_of(across, groups)) + said).encode())
    write_json(folder / "across.json", as_json(across, groups, remarks))
    if not any(run.n_parameters for run in across.runs):
        return
    marks = extended({}, across.methods)
    with drawing():
        figures = {
            "scores": scores_figure(across, marks),
            "standard_scores": standard_figure(across, groups, marks),
        }
        for name, figure in figures.items():
            write_durably(folder / "figures" / f"{name}.png", png(figure))
