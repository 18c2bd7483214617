"""Tables of the page: as many cells in every row, words for what is there, and space between tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from permafrost.stages.report.config import ReportConfig
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_page import rules
from tests.stages.report.test_report import Page

ABOUT_MATRICES = "Rows are classes and columns predictions"


@pytest.mark.parametrize("has_seeds", [True, False])
def test_every_row_of_the_results_has_as_many_cells(
    make_grid, tmp_path: Path, has_seeds: bool
) -> None:
    grid: Grid = make_grid(
        tasks=["a", "b", "c"], methods=["m"], controls=[], seeds=[0, 1] if has_seeds else [0]
    )
    grid.config = ReportConfig(title="t")
    for i in range(len(grid.cells)):
        balance = {"absent": 0.5, "present": 0.5}
        grid.edit_metrics(i, class_balance=balance, n_parameters=9 if has_seeds else 0)
    page = Page(grid.write(tmp_path / "report") / "report.html")
    whole = {len(page.row(name)) for name in ("method", "m", "majority", "classes")}
    assert len(whole) == 1
    table = page.source[page.source.index('class="results') :].partition("</table>")[0]
    spans = [int(part.partition('"')[0]) for part in table.split('colspan="')[1:]]
    assert len(spans) == 2
    assert {*spans} == whole


def test_matrices_are_explained_where_there_are_some(make_grid, tmp_path: Path) -> None:
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    with_classes = (grid.write(tmp_path / "classes") / "report.html").read_text()
    assert ABOUT_MATRICES in with_classes
    assert 'class="dense confusion"' in with_classes
    grid.corpora["t"] = replace(grid.corpora["t"], label_names=(), task="similarity")
    grid.edit_metrics(0, metric="spearman", majority=None)
    graded = (grid.write(tmp_path / "grades") / "report.html").read_text()
    assert "Nothing was chosen by these errors" in graded
    assert ABOUT_MATRICES not in graded


def test_tables_below_each_other_have_space_between_them() -> None:
    declared = rules(narrow=False)
    for before in (".scroll", ".under", ".notes", "details"):
        assert "margin-top" in declared[f"{before} + .scroll"]
