"""Alignment curves: from the files of fits to figure, table and page."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from permafrost.stages.metrics.records import ALIGNED, ALIGNMENT, EPOCHS
from permafrost.stages.report.alignment import (
    AlignmentCurve,
    alignment_curves,
    alignment_description,
    alignment_figure,
)
from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.report.palette import marks
from permafrost.storage.errors import CorruptDataError
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_report import Page

DEV = [0.5, 0.7, 0.7, 0.6]
DISTANCE = [1.25, 0.75, 0.5, 1.0]


def align(cell: Cell, dev: list[float] = DEV, distance: list[float] = DISTANCE) -> None:
    assert cell.history is not None
    folder = cell.history.parent
    epochs = list(range(1, len(dev) + 1))
    columns = [epochs, [1.0] * len(dev), dev]
    pq.write_table(pa.table(columns, schema=EPOCHS), cell.history)
    aligned = pa.table([list(range(1, len(distance) + 1)), distance], schema=ALIGNED)
    pq.write_table(aligned, folder / ALIGNMENT)


def two_seeds(grid: Grid) -> tuple[AlignmentCurve, ...]:
    """Seeds 0 and 1 of `glot` on the first task."""
    cells = [c for c in grid.cells if (c.method, c.task) == ("glot", "ratio 0.2")][:2]
    align(cells[0])
    align(cells[1], DEV[:2], [2.0, 1.5])
    return alignment_curves(read_results(grid.cells))


def test_a_curve_is_that_of_the_files_and_knows_what_was_kept(grid: Grid) -> None:
    (curve,) = two_seeds(grid)
    assert (curve.method, curve.task, len(curve.runs)) == ("glot", "ratio 0.2", 2)
    first, second = curve.runs
    assert first.distance.tolist() == DISTANCE
    # The earliest of the best on dev, which need not be the nearest.
    assert (first.run.kept, first.kept_distance, first.nearest) == (2, 0.75, 3)
    assert (second.run.kept, second.kept_distance, second.nearest) == (2, 1.5, 2)
    assert "0.750 with 70.0% at epoch 2, nearest at epoch 3" in alignment_description([curve])


def test_the_figure_has_means_a_longer_seed_and_a_ring_per_fit(grid: Grid) -> None:
    curves = two_seeds(grid)
    with drawing():
        figure = alignment_figure(curves, marks(results_table(grid.cells)))
    left, right = figure.axes
    assert left.get_title(loc="left") == "ratio 0.2 · distance on dev"
    for axes, scale, mine in ((left, 1, (DISTANCE, [2.0, 1.5])), (right, 100, (DEV, DEV[:2]))):
        lines = [line for line in axes.lines if line.get_linestyle() != "None"]
        found = sorted([np.asarray(line.get_ydata()).tolist() for line in lines], key=len)
        both = np.mean([values[:2] for values in mine], axis=0)
        longer = [scale * v for v in mine[0][1:]]
        assert found[0] == pytest.approx((scale * both).tolist())
        assert found[1] == pytest.approx(longer)
        rings = [line for line in axes.lines if line.get_linestyle() == "None"]
        drawn = sorted(np.asarray(r.get_ydata()).item() for r in rings)
        assert drawn == pytest.approx(sorted(scale * values[1] for values in mine))


@pytest.mark.deep
def test_the_page_shows_figure_and_numbers(grid: Grid, tmp_path: Path) -> None:
    (curve,) = two_seeds(grid)
    folder = grid.write(tmp_path / "report")
    page = Page(folder / "report.html")
    assert {"href": "#alignment"} in page.all("a")
    section = page.source[page.source.index('id="alignment"') : page.source.index('id="errors"')]
    assert section.count("<svg") == 1
    for r, dev in zip(curve.runs, ("70.0", "70.0"), strict=True):
        numbers = [f"{v:.3f}" for v in (r.distance[0], r.kept_distance, min(r.distance))]
        places = [str(r.run.kept), str(r.nearest), dev]
        shown = "–" if r.correlation is None else f"{r.correlation:+.2f}".replace("-", "−")
        assert ["ratio 0.2", "glot", *numbers, *places, shown] in page.rows
    assert f"glot on ratio 0.2: {curve.verdict}." in section
    assert (folder / "figures" / "alignment.png").exists()


# Metric and distance by epoch; rank correlation by hand (1 - 6 sum d^2 / (n (n^2 - 1)) without ties), whether
# the smallest distance is at the peak, and whether the distance is monotone.
MADE_UP = {
    "as the paper has it": ([0.5, 0.8, 0.7, 0.6], [0.9, 0.2, 0.4, 0.6], -1.0, True, False),
    "with the metric": ([0.5, 0.6, 0.7, 0.8], [0.1, 0.2, 0.3, 0.4], 1.0, False, True),
    # Ranks 1 2 3 4 and 4 2 3 1: d = 3 0 0 3, so 1 - 6 x 18 / 60.
    "against it, with a turn": ([0.5, 0.6, 0.7, 0.8], [0.9, 0.4, 0.5, 0.1], -0.8, True, False),
    "minimum elsewhere": ([0.8, 0.6, 0.7], [0.3, 0.2, 0.1], 1 - 6 * 2 / 24, False, True),
    "two peaks, one nearest": ([0.8, 0.5, 0.8, 0.6], [0.7, 0.8, 0.2, 0.6], None, True, False),
    "too few epochs": ([0.5, 0.6], [0.9, 0.8], None, True, True),
    "always the same": ([0.5, 0.5, 0.5], [0.9, 0.8, 0.7], None, True, True),
}


@pytest.mark.parametrize("case", MADE_UP)
def test_distance_is_held_against_the_metric_epoch_by_epoch(grid: Grid, case: str) -> None:
    dev, distance, correlation, at_peak, monotone = MADE_UP[case]
    cells = [c for c in grid.cells if (c.method, c.task) == ("glot", "ratio 0.2")]
    align(cells[0], dev, distance)
    (curve,) = alignment_curves(read_results(grid.cells))
    (run,) = curve.runs
    if case == "two peaks, one nearest":
        ranks = [stats.rankdata(values) for values in (dev, distance)]
        correlation = float(np.corrcoef(ranks)[0, 1])
    assert run.correlation == (None if correlation is None else pytest.approx(correlation))
    assert (run.is_nearest_at_peak, run.is_monotone) == (at_peak, monotone)


def test_what_the_paper_says_of_the_curve_is_counted_over_fits(grid: Grid) -> None:
    cells = [c for c in grid.cells if (c.method, c.task) == ("glot", "ratio 0.2")]
    for cell, name in zip(
        cells, ("as the paper has it", "with the metric", "too few epochs"), strict=True
    ):
        align(cell, *MADE_UP[name][:2])
    (curve,) = alignment_curves(read_results(grid.cells))
    assert curve.verdict == (
        "distance runs against the metric: 1 of 2 fits; minimum at the peak: 1 of 2 fits; not monotone: 1 of "
        "2 fits; nothing can be said of 1 more"
    )
    for cell in cells:
        align(cell, *MADE_UP["always the same"][:2])
    (silent,) = alignment_curves(read_results(grid.cells))
    assert silent.verdict.startswith("nothing can be said: too few epochs")
    assert silent.verdict.endswith("(3 fits)")


@pytest.mark.deep
def test_without_two_branches_there_is_no_section(written: Path) -> None:
    assert 'id="alignment"' not in (written / "report.html").read_text()


def test_distances_of_other_epochs_and_damaged_files_are_named(grid: Grid) -> None:
    cell = grid.cells[0]
    align(cell, DEV, DISTANCE[:3])
    with pytest.raises(CorruptDataError, match=r"has the epochs \[1, 2, 3\], but the history"):
        alignment_curves(read_results([cell]))
    assert cell.history is not None
    cell.history.with_name(ALIGNMENT).write_bytes(b"no parquet")
    with pytest.raises(CorruptDataError, match="holds no distances"):
        alignment_curves(read_results([cell]))
