import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from permafrost.stages.metrics.resampling import resampled
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.choices import (
    choice_fields,
    choice_rows,
    choices_table,
    settled_table,
)
from permafrost.stages.report.controls import control_findings
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_report import Page


def test_a_control_is_above_chance_where_p_says_so(make_grid):
    grid = make_grid(tasks=["t"], methods=["m"], controls=["a"], seeds=[0])
    # sqrt(0.5 * 0.5 / 400) = 0.025; 1.96 of them are 0.049.
    verdicts = {0.5489: "at chance", 0.5491: "above chance", 0.4509: "below chance"}
    for value, verdict in verdicts.items():
        grid.edit_metrics(1, test=value)
        (found,) = control_findings(results_table(grid.cells))
        assert found.verdict == verdict
        assert found.standard_error == math.sqrt(0.25 / 400)
        assert found.p == pytest.approx(2 * stats.norm.sf(abs(value - 0.5) / 0.025))
        assert found.difference == f"{100 * (value - 0.5):+.1f}".replace("-", "−")


def test_controls_are_corrected_for_their_number(make_grid):
    # The demo: length at 56.0 on 300 texts, one control of twelve.
    grid = make_grid(tasks=["t"], methods=["m"], controls=[*"abcdefghijkl"], seeds=[0])
    for i in range(1, 13):
        grid.edit_metrics(i, test=0.5, n_test=300)
    grid.edit_metrics(0, n_test=300)
    grid.edit_metrics(7, test=0.56)
    found = control_findings(results_table(grid.cells))
    assert {f.verdict for f in found} == {"at chance"}
    alone = 2 * stats.norm.sf(0.06 / math.sqrt(0.25 / 300))
    assert alone < 0.05
    assert found[6].p == pytest.approx(12 * alone)
    grid.edit_metrics(3, test=0.62)
    found = control_findings(results_table(grid.cells))
    assert [f.control for f in found if not f.at_chance] == ["c"], "a large one is still found"
    assert found[6].p == pytest.approx(11 * alone), "Holm: the second of twelve"
    assert all(f.p <= 1 for f in found)


def test_a_baseline_is_held_against_nothing(make_grid):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=["words", "shuffled"], seeds=[0])
    grid.cells[1] = replace(grid.cells[1], role="baseline")
    grid.edit_metrics(1, test=0.99)
    table = results_table(grid.cells)
    assert [f.control for f in control_findings(table)] == ["shuffled"]
    assert [row.label for row in table.rows] == ["m", "words (baseline)", "shuffled (control)"]
    assert table.is_best(table.rows[1], 0), "who beats every method is seen to"


@pytest.mark.parametrize("metric", ["mcc", "spearman", "pearson", "spearman_pearson"])
def test_a_correlation_is_held_against_0(make_grid, metric):
    grid = make_grid(tasks=["t"], methods=["m"], controls=["a"], seeds=[0])
    # 1 / sqrt(400) = 0.05; 1.96 of them are 0.098.
    verdicts = {
        0.0: "at chance",
        0.0979: "at chance",
        0.0981: "above chance",
        -0.0981: "below chance",
        0.694: "above chance",
    }
    for value, verdict in verdicts.items():
        grid.edit_metrics(1, metric=metric, majority=None, test=value, n_test=401)
        grid.edit_metrics(0, n_test=401)
        (found,) = control_findings(results_table(grid.cells))
        assert found.verdict == verdict
        assert (found.chance, found.standard_error) == (0, 0.05)
        assert found.p == pytest.approx(2 * stats.norm.sf(abs(value) / 0.05))


def test_the_standard_error_is_that_of_shuffled_labels():
    """Of few examples in two classes that are not balanced, and of more classes no more than that."""
    rng = np.random.default_rng(0)
    two = (rng.random(40) < 0.2).astype(float), (rng.random(40) < 0.7).astype(float)
    three = rng.integers(0, 3, 40).astype(float), rng.integers(0, 3, 40).astype(float)
    spreads: list[float] = []
    for labels, predictions in (two, three):
        orders_KN = np.stack([rng.permutation(predictions) for _ in range(4000)])
        values_K1 = resampled("mcc", labels, orders_KN, np.ones((40, 1)))
        assert abs(values_K1.mean()) < 0.01
        spreads.append(values_K1.std() * math.sqrt(39))
    assert spreads[0] == pytest.approx(1, abs=0.04)
    assert spreads[1] < 0.96


def test_correlations_and_accuracies_are_corrected_together_and_named_on_the_page(
    make_grid, tmp_path: Path
):
    grid = make_grid(tasks=["t", "u"], methods=["m"], controls=["leaks", "fair"], seeds=[0])
    for i, cell in enumerate(grid.cells):
        grid.edit_metrics(i, test=0.5)
        if cell.task == "u":
            values = {"m": 0.6, "leaks": 0.694, "fair": 0.02}
            grid.edit_metrics(i, metric="mcc", majority=None, test=values[cell.method])
    found = control_findings(results_table(grid.cells))
    assert [(f.control, f.task, f.chance, f.verdict) for f in found] == [
        ("leaks", "t", 0.5, "at chance"),
        ("leaks", "u", 0.0, "above chance"),
        ("fair", "t", 0.5, "at chance"),
        ("fair", "u", 0.0, "at chance"),
    ]
    assert found[1].p == pytest.approx(4 * 2 * stats.norm.sf(0.694 * math.sqrt(399)))
    source = Page(grid.write(tmp_path / "report") / "report.html").source
    assert (
        "<strong>1 control result of 4 above chance.</strong> Read the results of\n  u " in source
    )
    assert "Controls that were not tested" not in source


def test_controls_that_are_not_tested_are_named_with_the_reason(make_grid, tmp_path: Path):
    grid = make_grid(tasks=["t", "sts"], methods=["m"], controls=["wrong labels"], seeds=[0])
    for i, cell in enumerate(grid.cells):
        if cell.task == "t":
            grid.edit_metrics(i, metric="f1", majority=None)
        else:
            grid.edit_metrics(i, metric="pearson", majority=None, test=0.694)
            grid.cells[i] = replace(cell, must_be_at_chance=False)
    assert control_findings(results_table(grid.cells)) == ()
    folder = grid.write(tmp_path / "report")
    for content in (Page(folder / "report.html").source, (folder / "results.md").read_text()):
        assert "what chance gives in their metric is not known: wrong labels on t (f1)." in content
        assert "as they need not be at chance: wrong labels on sts." in content
    source = Page(folder / "report.html").source
    assert "<strong>No control was tested against chance.</strong>" in source


def test_choices_are_said_once_where_seeds_agree_and_in_seed_order_where_not(grid: Grid):
    rows = choice_rows(read_results(grid.cells[::-1]))
    (row,) = [r for r in rows if (r.method, r.task) == ("glot", "ratio 0.2")]
    assert row.seeds == (0, 1, 2)
    assert row.choices == {"layer": "hidden/6", "head.tau": "0.3, 0.6, 0.3", "epoch": "0, 1, 2"}
    assert len(rows) == 10


def test_a_choice_without_a_dev_score_has_none(make_grid):
    grid = make_grid(tasks=["t"], methods=["a", "b"], controls=[], seeds=[0, 1])
    grid.edit_metrics(1, dev=None, n_dev=0)
    first, second = choice_rows(read_results(grid.cells))
    assert first.dev is None, "a mean over the seeds that have one would mislead"
    assert second.dev is not None


def test_of_many_fields_only_those_that_differ_stand_in_columns(make_grid):
    grid: Grid = make_grid(tasks=["t"], methods=["a", "b"], controls=["c"], seeds=[0])
    common = {f"optim.{name}": name for name in ("lr", "schedule", "precision", "optimizer")}
    for i, width in enumerate((8, 16)):
        grid.edit_metrics(i, choice={**common, "epoch": 1, "head.hidden": width, "tau": 0.3})
    grid.edit_metrics(2, choice={"epoch": 2})
    rows = choice_rows(read_results(grid.cells))
    columns, settled = choice_fields(rows)
    assert columns == ["epoch", "head.hidden"]
    assert settled == {**common, "tau": "0.3"}


def test_what_seeds_chose_differently_stands_in_a_column_though_methods_agree(make_grid):
    grid: Grid = make_grid(tasks=["t"], methods=["a"], controls=[], seeds=[0, 1])
    common = {
        f"optim.{name}": name for name in ("lr", "schedule", "precision", "optimizer", "loss")
    }
    for i, tau in enumerate((0.3, 0.6)):
        grid.edit_metrics(i, choice={**common, "tau": tau, "epoch": 2})
    rows = choice_rows(read_results(grid.cells))
    columns, settled = choice_fields(rows)
    assert (columns, settled) == (["tau"], {**common, "epoch": "2"})
    assert choices_table(rows).rows[0][2] == "0.3, 0.6"
    assert settled_table(rows).rows == tuple({**common, "epoch": "2"}.items())


def test_the_answer_of_a_constant_is_not_said_to_be_chosen_on_dev(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["t"], methods=["a", "b"], controls=[], seeds=[0])
    for answer, said in (
        ({}, "dev."),
        ({"answer": "yes"}, "dev (a constant&#39;s answer on train)."),
    ):
        grid.edit_metrics(1, choice=answer)
        source = Page(grid.write(tmp_path / str(len(answer))) / "report.html").source
        assert f"What was chosen on {said} Metrics × 100." in source
    titles = [choices_table(choice_rows(read_results([cell]))).title for cell in grid.cells]
    assert [" answer on train" in title for title in titles] == [False, True]


def test_few_fields_all_stand_in_columns(grid: Grid):
    columns, settled = choice_fields(choice_rows(read_results(grid.cells)))
    assert (columns, settled) == (["layer", "head.tau", "epoch"], {})


def test_a_control_that_keeps_a_part_of_the_answer_is_held_against_no_majority(make_grid):
    """As with the graph of another, but the text of its own; it is never the best either."""
    grid: Grid = make_grid(
        tasks=["t", "u"], methods=["m"], controls=["others", "labels"], seeds=[0]
    )
    for i, cell in enumerate(grid.cells):
        if cell.method == "others":
            grid.cells[i] = replace(cell, must_be_at_chance=cell.task == "u")
            grid.edit_metrics(i, test=0.99)
    table = results_table(grid.cells)
    found = [(f.control, f.task) for f in control_findings(table)]
    assert found == [("others", "u"), ("labels", "t"), ("labels", "u")]
    assert table.is_best(table.rows[0], 0)
    assert not table.is_best(table.rows[1], 0)
