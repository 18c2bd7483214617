"""The figure by task and over a parameter: room for what is drawn, and whole names."""

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.config import CurveAxis, ReportConfig
from permafrost.stages.report.main_figure import main_figure
from permafrost.stages.report.palette import marks
from tests.stages.report.fake_results import make_grid, results_table


@pytest.mark.parametrize("axis", ["curve", "tasks"])
def test_a_long_legend_takes_no_room_from_the_figure(tmp_path: Path, axis: str):
    curve = CurveAxis(label="x", values={"a": 0.1})
    config = ReportConfig(title="t", x_axis=curve) if axis == "curve" else ReportConfig(title="t")
    heights: list[float] = []
    for names in (["m"] * 21, ["a method with a long name"] * 21):
        methods = [f"{name} {i}" for i, name in enumerate(names)]
        grid = make_grid(tmp_path / names[0], ["a"], methods, controls=[], seeds=[0])
        table = results_table(grid.cells)
        with drawing():
            (axes,) = main_figure(config, table, marks(table)).axes
        heights.append(axes.get_window_extent().height)
    assert heights[0] == pytest.approx(heights[1])
    assert heights[0] > 7 * 21


def test_names_of_tasks_and_metrics_are_whole(tmp_path: Path):
    long = "OpenBookQA with the gold fact of the question"
    grid = make_grid(tmp_path, [long, "b"], ["m"], controls=[], seeds=[0])
    grid.edit_metrics(0, metric="spearman")
    grid.edit_metrics(1, metric="normalised_mutual_information")
    table = results_table(grid.cells)
    with drawing():
        figure = main_figure(ReportConfig(title="t"), table, marks(table))
        FigureCanvasAgg(figure).draw()
        (axes,) = figure.axes
        labels = axes.get_yticklabels()
        assert labels[0].get_text().replace("\n", " ") == long
        assert all(label.get_window_extent().x0 > 0 for label in labels)
        assert axes.get_xlabel() == "test spearman, normalised_mutual_information × 100"
        one, other = sorted((label.get_window_extent() for label in labels), key=lambda b: b.y0)
        assert one.y1 < other.y0
