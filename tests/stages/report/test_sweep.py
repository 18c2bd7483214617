"""Curves of methods over one of their settings."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.config import ReportConfig, SweepAxis
from permafrost.stages.report.main_figure import main_description, main_figure
from permafrost.stages.report.palette import CONTROL, marks
from permafrost.stages.report.report import write_report
from permafrost.stages.report.sweep import SweptCurve
from permafrost.stages.report.tables import ResultsTable
from tests.stages.report.fake_results import Grid, results_table, without

CURVES = [SweptCurve("K", {"K 1": 1.0, "K 2": 2.0, "K 8": 8.0})]
METHODS = [*CURVES[0].values, "mean"]


def drawn(table: ResultsTable, axis: SweepAxis):
    config = ReportConfig(title="t", x_axis=axis)
    with drawing():
        return main_figure(config, table, marks(table), CURVES)


def points(line) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.column_stack(line.get_data())]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_panel_has_every_curve_and_other_methods_are_level_lines(make_grid, scale) -> None:
    grid: Grid = make_grid(methods=METHODS, controls=["length"], seeds=[0])
    table = results_table(grid.cells)
    figure = drawn(table, SweepAxis(label="sentences", fields=("size",), scale=scale))
    assert [a.get_title(loc="left") for a in figure.axes] == [
        f"{t} (accuracy)" for t in grid.corpora
    ]
    for place, axes in enumerate(figure.axes):
        scores = {r.method: 100 * e.mean for r in table.rows if (e := r.entries[place])}
        lines = [points(line) for line in axes.get_lines()]
        curve = [(x, pytest.approx(scores[m])) for m, x in CURVES[0].values.items()]
        assert curve in lines
        ends = axes.get_xlim()
        for name in ("mean", "length"):
            assert [(x, pytest.approx(scores[name])) for x in ends] in lines
        assert axes.get_xscale() == scale
        assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "8"]
        assert ends[0] < 1 < 8 < ends[1]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["K", "mean", "length"]
    assert figure.axes[0].get_lines()[1].get_color() == CONTROL


def test_bars_end_at_100_and_marks_there_are_whole(make_grid) -> None:
    grid: Grid = make_grid(tasks=["t"], methods=METHODS, controls=[], seeds=[0, 1])
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, test=[0.9, 1.0][i % 2])
    table = results_table(grid.cells)
    (axes,) = drawn(table, SweepAxis(label="sentences", fields=("size",))).axes
    (bars,) = (c for c in axes.collections if isinstance(c, LineCollection))
    ends = np.concatenate([segment[:, 1] for segment in bars.get_segments()])
    sd = 100 * np.std([0.9, 1.0], ddof=1)
    assert (ends.min(), ends.max()) == (pytest.approx(95 - sd), 100.0)
    assert axes.get_ylim()[1] == 100.0
    assert axes.get_ylim()[0] < 95 - sd
    marked = [line for line in axes.get_lines() if line.get_marker() not in ("None", "")]
    assert marked
    assert not any(line.get_clip_on() for line in marked)


def test_a_long_name_leaves_the_metric_in_the_title(make_grid) -> None:
    grid: Grid = make_grid(
        tasks=["OpenBookQA with the gold fact of the question"], methods=METHODS, seeds=[0]
    )
    (axes,) = drawn(results_table(grid.cells), SweepAxis(label="x", fields=("size",))).axes
    assert axes.get_title(loc="left") == "OpenBookQA with th… (accuracy)"


def test_what_was_not_run_is_left_out(make_grid) -> None:
    grid: Grid = make_grid(methods=METHODS, controls=[], seeds=[0, 1])
    first, second = grid.corpora
    table = results_table(without(grid, "K 2", second).cells)
    config = ReportConfig(title="t", x_axis=SweepAxis(label="sentences", fields=("size",)))
    said = main_description(config, table, CURVES)
    on_first, on_second = (
        next(p for p in said.split("; ") if f" on {t} " in p) for t in (first, second)
    )
    assert " at 2" in on_first
    assert " at 2" not in on_second
    assert " at 8" in on_second


@pytest.mark.deep
@pytest.mark.drawn
def test_the_page_has_the_curves(make_grid, tmp_path: Path) -> None:
    grid: Grid = make_grid(methods=METHODS, controls=[], seeds=[0, 1])
    axis = SweepAxis(label="sentences", fields=("size",))
    write_report(
        ReportConfig(title="t", x_axis=axis),
        grid.cells,
        grid.corpora,
        grid.text_tokens,
        {},
        tmp_path,
        swept=CURVES,
    )
    page = (tmp_path / "report.html").read_text()
    assert "Against sentences" in page
    assert "K on ratio 0.2 (accuracy): " in page
    # Means over tasks have a panel, as methods are what is swept.
    assert "K on mean: " in page
