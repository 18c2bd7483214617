"""Counts of texts and examples by task, as far as they are known."""

from pathlib import Path

import pyarrow as pa

from permafrost.stages.report.data_table import DataRow, data_rows
from tests.stages.report.fake_results import FakeCorpus, Grid, results_table
from tests.stages.report.test_report import Page


def questions(n_choices: dict[str, list[int]]) -> FakeCorpus:
    """Multiple choice: so many choices of each question of a split, the first of them right."""
    rows = [
        {"split": split, "text": 0, "label": float(i == 0)}
        for split, counts in n_choices.items()
        for n in counts
        for i in range(n)
    ]
    names = ("split", "text", "label")
    table = pa.table({name: [row[name] for row in rows] for name in names})
    return FakeCorpus(("a", "b"), table, ("wrong", "right"), "multiple_choice")


def test_questions_are_counted_not_their_choices(make_grid) -> None:
    grid: Grid = make_grid(tasks=["ask"], methods=["m"], controls=[], seeds=[0])
    corpus = questions({"train": [4, 4, 3], "test": [5, 2]})
    (row,) = data_rows(results_table(grid.cells).columns, {"ask": corpus})
    assert row == DataRow("ask", 2, (3, 0, 2), "each choice of a question: wrong, right")


def test_what_is_not_known_of_an_evaluation_is_no_zero(make_grid, tmp_path: Path) -> None:
    grid: Grid = make_grid(tasks=["own", "theirs"], methods=["m"], controls=[], seeds=[0])
    del grid.corpora["theirs"]
    for name in ("predictions", "token_weights"):
        (grid.cells[1].folder / f"{name}.parquet").unlink()
    page = Page(grid.write(tmp_path / "report") / "report.html")
    assert ["own", "12", "4", "4", "4", "absent, present"] in page.rows
    assert ["theirs", "–", "–", "–", "400", "–"] in page.rows
