import json
from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.metrics.bootstrap import Interval
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.entries import Entry, entry, hundredths, magnitude
from permafrost.stages.report.results_files import results_arrow, results_markdown, results_summary
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError, PermafrostError
from tests.stages.report.fake_results import Grid, results_table, without


def measured(grid: Grid, method: str, task: str) -> list[float]:
    return [
        json.loads((c.folder / "metrics.json").read_text())["test"]
        for c in grid.cells
        if (c.method, c.task) == (method, task)
    ]


def test_entries_are_the_mean_and_sample_sd_over_seeds(grid: Grid):
    table = results_table(grid.cells)
    for row in table.rows:
        for column, found in zip(table.columns, row.entries, strict=True):
            values = measured(grid, row.method, column.task)
            assert found is not None
            assert found.mean == np.mean(values)
            assert found.n == len(values)
            assert found.sd == (np.std(values, ddof=1) if len(values) > 1 else None)


def test_one_seed_has_a_dash_for_its_spread():
    assert entry([0.5]).text == "50.0 ± –"
    assert entry([0.4, 0.6]).text == "50.0 ± 14.1"


def test_a_method_that_was_not_run_on_a_task_has_no_entry_there(grid: Grid):
    table = results_table(without(grid, "glot", "ratio 0.8").cells)
    (glot,) = [row for row in table.rows if row.method == "glot"]
    assert glot.entries[0] is not None
    assert glot.entries[1] is None
    assert "| glot | **" in results_markdown(table)
    assert results_summary(table)["rows"][2]["cells"][1] is None


def test_methods_come_first_and_only_methods_can_be_best(grid: Grid):
    grid.edit_metrics(9, test=0.999)  # a control
    table = results_table(grid.cells)
    assert [row.method for row in table.rows] == ["mean", "scorer", "glot", "shuffled", "length"]
    assert [row.method for row in table.rows if table.is_best(row, 0)] == ["glot"]


def test_methods_that_print_the_same_are_both_best(make_grid):
    grid = make_grid(tasks=["t"], methods=["a", "b", "c"], controls=[], seeds=[0])
    for i, value in enumerate((0.9001, 0.9004, 0.8994)):
        grid.edit_metrics(i, test=value)
    table = results_table(grid.cells)
    assert [table.is_best(row, 0) for row in table.rows] == [True, True, False]


def test_markdown_has_a_line_per_row_marks_controls_and_ends_with_the_majority(grid: Grid):
    lines = results_markdown(results_table(grid.cells)).splitlines()
    assert lines[0] == "| method | ratio 0.2 (accuracy) | ratio 0.8 (accuracy) | seeds |"
    assert len({line.count("|") for line in lines}) == 1
    assert lines[5].startswith("| shuffled (control) |")
    assert lines[-1] == "| majority class | 50.0 | 50.0 | – |"


def test_markdown_escapes_what_would_break_the_table(make_grid):
    grid = make_grid(tasks=["a|b"], methods=["x\ny|z"], controls=[], seeds=[0])
    lines = results_markdown(results_table(grid.cells)).splitlines()
    assert len(lines) == 4
    assert "a\\|b" in lines[0]
    assert "x y\\|z" in lines[2]


def test_two_metrics_on_one_task_are_two_columns_and_only_accuracy_has_a_majority(grid: Grid):
    grid.edit_metrics(0, metric="mcc")
    table = results_table(grid.cells)
    assert [c.heading for c in table.columns] == [
        "ratio 0.2 · mcc",
        "ratio 0.2 · accuracy",
        "ratio 0.8",
    ]
    assert [c.majority for c in table.columns] == [None, 0.5, 0.5]
    (mean,) = [row for row in table.rows if row.method == "mean"]
    assert [e and e.n for e in mean.entries] == [1, 2, 3]


def test_results_arrow_has_every_cell_with_its_numbers(grid: Grid):
    results = read_results(grid.cells)
    interval = Interval(0.7, 0.65, 0.75)
    cell = ("mean", "ratio 0.2", 0)
    rows = results_arrow(results, {cell: interval}, {cell: (0.5, 0.4)}).to_pylist()
    both = [(row.pop("pearson"), row.pop("spearman")) for row in rows]
    assert both == [(0.5, 0.4), *[(None, None)] * 25]
    ends = [(row.pop("ci_low"), row.pop("ci_high")) for row in rows]
    assert ends == [(0.65, 0.75), *[(None, None)] * 25]
    assert len(rows) == len(grid.cells) == 26
    for row, cell in zip(rows, grid.cells, strict=True):
        metrics = json.loads((cell.folder / "metrics.json").read_text())
        assert json.loads(row.pop("choice")) == metrics.pop("choice")
        names = ("method", "task", "category", "seed", "role", "key")
        unknown = dict.fromkeys(("guess", "class_balance", "overlap", "n_clean_test", "clean_test"))
        assert row == unknown | metrics | {name: getattr(cell, name) for name in names}


def test_no_cells_are_refused():
    with pytest.raises(InputError, match="report of 0 cells"):
        results_table([])


def test_a_missing_metrics_file_names_the_cell_and_the_folder(grid: Grid):
    (grid.cells[3].folder / "metrics.json").unlink()
    with pytest.raises(
        NotFoundError, match=r"scorer · ratio 0\.2 · seed 0 have no metrics.json in .*003"
    ):
        results_table(grid.cells)


@pytest.mark.parametrize("field", ["dev", "test", "majority"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_refused_with_its_cell(grid: Grid, field: str, value: float):
    grid.edit_metrics(4, **{field: value})
    with pytest.raises(
        PermafrostError, match=rf"{field} accuracy of scorer · ratio 0\.2 · seed 1 is {value}"
    ):
        results_table(grid.cells)


def test_metrics_without_a_field_are_refused_by_its_name(grid: Grid):
    path = grid.cells[0].folder / "metrics.json"
    path.write_text(
        '{"metric": "accuracy", "dev": 0.5, "n_dev": 4, "n_test": 4, "n_parameters": 0}'
    )
    with pytest.raises(CorruptDataError, match="wrong or missing fields: test"):
        results_table(grid.cells)


def test_a_result_without_a_test_score_is_refused_by_its_name(grid: Grid):
    grid.edit_metrics(2, test=None, n_test=0)
    with pytest.raises(
        InputError, match=r"mean · ratio 0\.2 · seed 2 was scored .* without a test"
    ):
        results_table(grid.cells)


def test_metrics_that_are_not_json_are_refused(grid: Grid):
    (grid.cells[0].folder / "metrics.json").write_text("{")
    with pytest.raises(CorruptDataError, match="not valid JSON"):
        results_table(grid.cells)


def test_a_cell_given_twice_is_refused(grid: Grid):
    with pytest.raises(InputError, match=r"mean · ratio 0\.2 · seed 0 is given twice"):
        results_table([*grid.cells, grid.cells[0]])


def test_different_test_sets_of_one_task_are_refused_with_both_sizes(grid: Grid):
    grid.edit_metrics(5, n_test=399)
    with pytest.raises(InputError, match=r"on 400 test examples .* on 399"):
        results_table(grid.cells)


def test_hundredths_has_a_real_minus_and_no_negative_zero():
    assert [hundredths(v) for v in (0.12345, -0.05, -0.0001, 1.0)] == [
        "12.3",
        "−5.0",
        "0.0",
        "100.0",
    ]


def test_summary_headings_match_the_cells_of_every_row(grid: Grid):
    summary = results_summary(results_table(grid.cells))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert {len(row["cells"]) for row in summary["rows"]} == {len(summary["tasks"])}
    assert summary["rows"][2]["cells"][0]["best"] is True
    assert summary["rows"][4]["cells"][0]["sd"] is None


def test_an_entry_is_immutable():
    with pytest.raises(AttributeError):
        Entry(0.5, None, 1).mean = 0.6  # pyright: ignore[reportAttributeAccessIssue]


def test_the_results_stay_where_they_are(grid: Grid, tmp_path: Path):
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    results_table(grid.cells)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0 k"),
        (12_345, "12.3 k"),
        (999_949, "999.9 k"),
        (999_950, "1.0 M"),
        (1_234_567, "1.2 M"),
        (2_500_000_000, "2.5 G"),
    ],
)
def test_large_counts_are_abbreviated(n: int, text: str):
    assert magnitude(n) == text
