"""The table of costs: recorded numbers beside the score, and nothing where nothing was recorded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.report.cells import Costs, read_results
from permafrost.stages.report.costs import Extraction, cost_rows
from permafrost.stages.report.entries import seconds
from permafrost.stages.report.learning import learning_curves
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_report import Page

pytestmark = pytest.mark.deep


def with_costs(grid: Grid) -> Grid:
    """Seconds of a fit are ten times the number of the cell, of a score a hundredth of it."""
    grid.cells = [
        replace(c, costs=Costs(10.0 * i, None if c.method == "length" else i / 100, 1000 + c.seed))
        for i, c in enumerate(grid.cells, start=1)
    ]
    return grid


def test_a_row_holds_means_over_seeds_and_what_the_histories_say(grid: Grid):
    results = read_results(with_costs(grid).cells)
    rows = cost_rows(results, learning_curves(results))
    assert len(rows) == 10
    (row,) = [r for r in rows if (r.method, r.task) == ("scorer", "ratio 0.2")]
    mine = [
        i
        for i, r in enumerate(results, 1)
        if (r.cell.method, r.cell.task) == ("scorer", "ratio 0.2")
    ]
    assert row.fit_seconds == pytest.approx(10 * np.mean(mine))
    assert row.score_seconds == pytest.approx(np.mean(mine) / 100)
    assert row.test.mean == np.mean([results[i - 1].metrics.test for i in mine])
    assert row.n_parameters == (1234, 1234)
    assert row.n_pooling_parameters == (1000, 1002)
    assert (row.n_candidates, row.n_epochs) == (2, 8.0)
    (length,) = [r for r in rows if (r.method, r.task) == ("length", "ratio 0.2")]
    assert (length.n_candidates, length.n_epochs, length.score_seconds) == (None, None, None)


def test_a_seed_without_a_record_leaves_a_gap_and_none_at_all_no_table(grid: Grid):
    results = read_results(grid.cells)
    assert cost_rows(results, learning_curves(results)) == ()
    grid = with_costs(grid)
    grid.cells[0] = replace(grid.cells[0], costs=Costs(score_seconds=1.0))
    results = read_results(grid.cells)
    row = cost_rows(results, learning_curves(results))[0]
    assert row.method == "mean"
    assert row.fit_seconds is None
    assert row.n_pooling_parameters is None


def test_the_page_shows_costs_beside_the_score_and_tokens_per_second(grid: Grid, tmp_path: Path):
    grid = with_costs(grid)
    grid.extractions = [Extraction("extract", 12345, 8.0), Extraction("extract again", 0, 0.5)]
    page = Page(grid.write(tmp_path / "report") / "report.html")
    assert {"href": "#costs"} in page.all("a")
    test = next(row for row in page.rows if row[0] == "scorer")[1]
    # Cells 4, 5 and 6 are the scorer's on the first task.
    row = ["", "scorer", test, "1,234", "1,000–1,002", "2", "8", "50", "0.05"]
    assert row in [[" ".join(cell.split()) for cell in found] for found in page.rows]
    assert ["extract", "12,345", "8", "1,543"] in page.rows
    assert ["extract again", "–", "0.5", "–"] in page.rows


def test_without_records_there_is_no_section(written: Path):
    assert 'id="costs"' not in (written / "report.html").read_text()


def test_times_are_printed_with_two_digits_or_whole():
    shown = [seconds(s) for s in (None, 0.0, 0.034, 1.26, 9.94, 9.96, 1234.4)]
    assert shown == ["–", "0", "0.034", "1.3", "9.9", "10", "1,234"]
