"""Class balance beside the majority rate, and scores without texts that train has."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from permafrost.flows.terminal import render
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.clean import clean_table
from permafrost.stages.report.entries import hundredths, share
from permafrost.stages.report.results_files import results_markdown, results_summary
from permafrost.stages.report.tables import Column
from permafrost.storage.errors import PermafrostError
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_report import Page

pytestmark = pytest.mark.deep

BALANCE = {"absent": 0.25, "present": 0.75}


@pytest.fixture
def mixed(grid: Grid) -> Grid:
    """Classes are counted; of the first task 20 % of test overlaps, of the second nothing."""
    for i, cell in enumerate(grid.cells):
        grid.edit_metrics(i, majority=0.75, class_balance=BALANCE)
        test = json.loads((cell.folder / "metrics.json").read_text())["test"]
        if cell.task == "ratio 0.2":
            grid.edit_metrics(i, overlap=0.2, n_clean_test=320, clean_test=test - 0.1 * i / 26)
        else:
            grid.edit_metrics(i, overlap=0.0, n_clean_test=400, clean_test=test)
    return grid


def clean_scores(grid: Grid, method: str) -> list[float]:
    return [
        json.loads((c.folder / "metrics.json").read_text())["clean_test"]
        for c in grid.cells
        if (c.method, c.task) == (method, "ratio 0.2")
    ]


def terminal(grid: Grid) -> str:
    console = Console(width=200, record=True)
    console.print(render("Title", {"title": "Title", **results_summary(results_table(grid.cells))}))
    return console.export_text()


def test_shares_stand_in_the_order_of_the_classes_and_many_as_a_range():
    def text(shares: dict[str, float] | None) -> str:
        return Column("t", "accuracy", "t", None, 100, class_balance=shares).balance_text

    assert text(BALANCE) == "25.0 / 75.0"
    assert text({"a": 0.5, "b": 0.2, "c": 0.3}) == "50.0 / 20.0 / 30.0"
    assert text({str(i): s for i, s in enumerate((0.1, 0.2, 0.3, 0.4))}) == (
        "4 classes, 10.0 to 40.0"
    )
    assert text(None) == "–"


def test_every_table_has_the_majority_rate_and_the_classes(mixed: Grid, tmp_path: Path):
    lines = results_markdown(results_table(mixed.cells)).splitlines()
    assert lines[-2] == "| majority class | 75.0 | 75.0 | – |"
    assert lines[-1] == "| classes in test | 25.0 / 75.0 | 25.0 / 75.0 | – |"
    assert len({line.count("|") for line in lines}) == 1
    printed = terminal(mixed).splitlines()
    assert any(line.split() == ["majority", "class", "│", "75.0", "│", "75.0"] for line in printed)
    assert any("classes in test" in line and line.count("25.0 / 75.0") == 2 for line in printed)
    page = Page(mixed.write(tmp_path / "report") / "report.html")
    assert page.row("classes")[:3] == ["classes in test", "25.0 / 75.0", "25.0 / 75.0"]
    assert page.row("majority")[:3] == ["majority class", "75.0", "75.0"]
    titles = [a.get("title") for a in page.all("td")]
    assert titles.count("absent 25.0 %, present 75.0 %") == 2
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["class_balance"] == [{"value": BALANCE, "text": "25.0 / 75.0"}] * 2
    assert summary["overlap"] == [0.2, 0.0]


def test_classes_are_shown_whatever_the_metric(mixed: Grid):
    for i in range(len(mixed.cells)):
        mixed.edit_metrics(i, metric="mcc")
    lines = results_markdown(results_table(mixed.cells)).splitlines()
    assert "majority" not in lines[-2]
    assert lines[-1] == "| classes in test | 25.0 / 75.0 | 25.0 / 75.0 | – |"


def test_results_parquet_has_balance_overlap_and_clean_scores(mixed: Grid, tmp_path: Path):
    rows = pq.read_table(mixed.write(tmp_path / "report") / "results.parquet").to_pylist()
    for row, cell in zip(rows, mixed.cells, strict=True):
        metrics = json.loads((cell.folder / "metrics.json").read_text())
        assert json.loads(row["class_balance"]) == BALANCE
        assert list(json.loads(row["class_balance"])) == list(BALANCE), "the order of the classes"
        for name in ("majority", "overlap", "n_clean_test", "clean_test"):
            assert row[name] == metrics[name]


def test_clean_scores_stand_beside_those_on_all_of_test(mixed: Grid, tmp_path: Path):
    table = results_table(mixed.cells)
    found = clean_table(read_results(mixed.cells), table)
    assert found is not None
    assert [c.task for c in found.columns] == ["ratio 0.2"]
    assert found.n_clean == (320,)
    assert [row.method for row in found.rows] == [row.method for row in table.rows]
    for row in found.rows:
        ((on_all, on_others),) = row.entries
        assert on_all is not None
        assert on_others is not None
        assert on_others.mean == np.mean(clean_scores(mixed, row.method))
        assert on_all.mean != on_others.mean
    page = Page(mixed.write(tmp_path / "report") / "report.html")
    (glot,) = [r for r in page.rows if r[0].startswith("glot") and len(r) == 3]
    expected = np.mean(clean_scores(mixed, "glot"))
    assert glot[1:] == [hundredths(found.rows[2].entries[0][0].mean), hundredths(float(expected))]
    assert "ratio 0.2accuracy, 20.0 % share a text" in [cell for row in page.rows for cell in row]
    assert "Test examples that share a text with train: ratio 0.2 20.0 %." in page.source


def test_a_baseline_that_is_a_control_elsewhere_has_one_row(mixed: Grid):
    """Its scores on the clean part are those of the task on which it is a baseline."""
    for i, cell in enumerate(mixed.cells):
        if cell.method == "length":
            role = "baseline" if cell.task == "ratio 0.2" else "control"
            mixed.cells[i] = replace(cell, role=role)
    found = clean_table(read_results(mixed.cells), results_table(mixed.cells))
    assert found is not None
    assert [row.role for row in found.rows if row.method == "length"] == ["baseline"]


def test_without_overlap_there_is_neither_a_note_nor_a_table(grid: Grid, tmp_path: Path):
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, overlap=0.0, n_clean_test=400, clean_test=0.5)
    assert clean_table(read_results(grid.cells), results_table(grid.cells)) is None
    page = Page(grid.write(tmp_path / "report") / "report.html")
    assert "that train has" not in page.source


def test_where_all_of_test_is_in_train_no_scores_on_others_are_promised(
    mixed: Grid, tmp_path: Path
):
    of_first = [i for i, cell in enumerate(mixed.cells) if cell.task == "ratio 0.2"]
    of_second = [i for i in range(len(mixed.cells)) if i not in of_first]
    for i in of_second:
        mixed.edit_metrics(i, overlap=1.0, n_clean_test=0, clean_test=None)
    source = (mixed.write(tmp_path / "one") / "report.html").read_text()
    (second,) = {mixed.cells[i].task for i in of_second}
    assert f"{second} 100.0 %. Scores on the others are in report.html" in source
    assert f"The others of {second} have no score of their own: they are too few" in source
    found = clean_table(read_results(mixed.cells), results_table(mixed.cells))
    assert found is not None
    assert [c.task for c in found.columns] == ["ratio 0.2"]
    for i in of_first:
        mixed.edit_metrics(i, overlap=1.0, n_clean_test=0, clean_test=None)
    source = (mixed.write(tmp_path / "both") / "report.html").read_text()
    assert "Scores on the others" not in source
    assert "Without texts that occur in train" not in source


def test_many_others_without_a_score_are_not_said_to_be_too_few_alone(grid: Grid, tmp_path: Path):
    """A correlation with labels that are all equal is none."""
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, overlap=0.4, n_clean_test=300, clean_test=None)
    source = Page(grid.write(tmp_path / "report") / "report.html").source
    assert "are too few, or all have one label or one prediction." in source


def test_a_small_overlap_is_not_printed_as_none(grid: Grid, tmp_path: Path):
    for i in range(len(grid.cells)):
        shares = {"overlap": 0.0004, "test_in_dev": 0.0004, "dev_in_train": 0.0005}
        grid.edit_metrics(i, n_clean_test=2499, clean_test=0.5, **shares)
    source = Page(grid.write(tmp_path / "report") / "report.html").source
    (task, *_) = (c.task for c in grid.cells)
    assert f"share a text with train: {task} under 0.1 %" in source
    assert "under 0.1 % share a text" in source
    assert f"Test examples that are in dev too: {task} under 0.1 %" in source
    assert f"Dev examples that are in train too: {task} 0.1 %" in source
    assert [share(v) for v in (0.0, 0.00049, 0.0005, 0.25)] == ["0.0", "under 0.1", "0.1", "25.0"]


@pytest.mark.deep
def test_a_dev_that_is_another_split_is_said(grid: Grid, tmp_path: Path):
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, test_in_dev=1.0, dev_in_train=0.25)
    source = Page(grid.write(tmp_path / "report") / "report.html").source
    (task, *_) = (c.task for c in grid.cells)
    assert f"Test examples that are in dev too: {task} 100.0 %" in source
    assert "so that its score is too high." in source
    assert f"Dev examples that are in train too: {task} 25.0 %" in source
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, test_in_dev=0.0, dev_in_train=None)
    again = Page(grid.write(tmp_path / "again") / "report.html").source
    assert "that are in dev too" not in again
    assert "that are in train too" not in again


@pytest.mark.deep
def test_a_test_set_of_one_class_is_said(grid: Grid, tmp_path: Path):
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, class_balance={"no": 0.0, "yes": 1.0})
    source = Page(grid.write(tmp_path / "report") / "report.html").source
    assert (
        "All test examples are of one class: ratio 0.2 (class &#39;yes&#39;), ratio 0.8 " in source
    )
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, class_balance={"no": 0.002, "yes": 0.998})
    again = Page(grid.write(tmp_path / "again") / "report.html").source
    assert "of one class" not in again


def test_a_method_with_a_seed_that_has_no_clean_score_is_left_out(mixed: Grid):
    mixed.edit_metrics(0, clean_test=None)
    found = clean_table(read_results(mixed.cells), results_table(mixed.cells))
    assert found is not None
    methods = [row.method for row in found.rows]
    assert methods == ["scorer", "glot", "shuffled", "length"]


def test_a_clean_score_that_is_not_finite_is_refused(mixed: Grid):
    mixed.edit_metrics(4, clean_test=float("nan"))
    with pytest.raises(PermafrostError, match=r"clean_test accuracy of scorer .* is nan"):
        results_table(mixed.cells)
