"""Curves over layers: from a tidy table to figure, data table and file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from permafrost.stages.metrics.segment_matching import layer_curve
from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.config import ReportConfig, TasksAxis
from permafrost.stages.report.layers import (
    LAYER_CURVES,
    layer_description,
    layer_figure,
    layer_tables,
    read_layer_curves,
)
from permafrost.stages.report.palette import SERIES, extended, marks
from permafrost.storage.errors import InputError
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_report import Page

pytestmark = pytest.mark.deep

SCORES = {
    ("va", "matching"): {0: 0.1, 2: 0.42, 4: 0.4196},
    ("hs", "matching"): {4: 0.2, 0: 0.3},
    ("va", "sts"): {0: -0.05, 2: 0.0, 4: 0.31},
}


def tidy(scores: dict[tuple[str, str], dict[int, float]] | None = None) -> pa.Table:
    rows = [
        ("layers", method, task, layer, score)
        for (method, task), curve in (SCORES if scores is None else scores).items()
        for layer, score in curve.items()
    ]
    return pa.table(dict(zip(LAYER_CURVES.names, map(list, zip(*rows, strict=True)), strict=True)))


def changed(name: str, values: list[Any]) -> pa.Table:
    table = tidy()
    return table.set_column(table.column_names.index(name), name, [values])


@pytest.fixture
def with_layers(make_grid, tmp_path: Path) -> tuple[Grid, Path]:
    grid: Grid = make_grid(tasks=["sts"], methods=["mean", "va"], controls=["shuffled"])
    grid.config = ReportConfig(title="t", x_axis=TasksAxis())
    grid.layer_curves = tidy()
    return grid, grid.write(tmp_path / "report")


def test_curves_hold_the_scores_of_the_table_in_the_order_of_layers() -> None:
    order = np.random.default_rng(0).permutation(tidy().num_rows)
    for table in (
        tidy(),
        tidy().take(order),
        tidy().select(["score", "layer", "task", "method", "probe"]),
    ):
        curves = read_layer_curves(table)
        found = {(c.method, c.task): list(zip(c.layers, c.scores, strict=True)) for c in curves}
        assert found == {key: sorted(curve.items()) for key, curve in SCORES.items()}


def test_the_best_layer_is_the_first_that_prints_the_highest() -> None:
    best = {(c.method, c.task): int(c.layers[c.best]) for c in read_layer_curves(tidy())}
    # 0.42 and 0.4196 both print 42.0.
    assert best == {("va", "matching"): 2, ("hs", "matching"): 0, ("va", "sts"): 4}
    words = layer_description(read_layer_curves(tidy()))
    assert "va on matching 42.0% at layer 2; hs on matching 30.0% at layer 0;" in words


def test_a_data_table_has_all_layers_and_a_gap_where_a_method_has_none() -> None:
    first, second = layer_tables(read_layer_curves(tidy()))
    assert (first.task, second.task) == ("matching", "sts")
    assert [curve.method for curve in first.curves] == ["va", "hs"]
    assert first.rows() == [
        (0, [(0.1, False), (0.3, True)]),
        (2, [(0.42, True), (None, False)]),
        (4, [(0.4196, False), (0.2, False)]),
    ]


def test_the_figure_has_a_panel_per_task_and_a_line_per_curve(grid: Grid) -> None:
    curves = read_layer_curves(tidy())
    row_marks = extended(marks(results_table(grid.cells)), [c.method for c in curves])
    with drawing():
        figure = layer_figure(curves, row_marks)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["matching", "sts"]
    for axes in figure.axes:
        drawn = {
            line.get_color(): (list(line.get_xdata()), list(line.get_ydata()))  # pyright: ignore[reportArgumentType]
            for line in axes.lines
        }
        expected = {
            row_marks[method].colour: (
                sorted(curve),
                [pytest.approx(100 * curve[layer], abs=1e-9) for layer in sorted(curve)],
            )
            for (method, task), curve in SCORES.items()
            if task == axes.get_title(loc="left")
        }
        assert drawn == expected
    low, high = figure.axes[0].get_ylim()
    assert low < -5 < 42 < high, "panels share one scale"


def test_methods_without_a_mark_get_the_next_ones_and_the_others_keep_theirs(grid: Grid) -> None:
    old = marks(results_table(grid.cells))
    new = extended(old, ["glot", "va", "hs", "va"])
    assert {name: new[name] for name in old} == old
    assert [new[name].colour for name in ("va", "hs")] == list(SERIES[3:5])
    assert len({(m.colour, m.marker) for m in new.values()}) == len(new) == len(old) + 2


@pytest.mark.deep
@pytest.mark.drawn
def test_the_page_shows_figure_and_numbers(with_layers: tuple[Grid, Path]) -> None:
    _, folder = with_layers
    page = Page(folder / "report.html")
    section = page.source[page.source.index('id="layers"') : page.source.index('id="tokens"')]
    assert {"href": "#layers"} in page.all("a")
    assert page.rows[page.rows.index(["layer", "va", "hs"]) + 1 :][:3] == [
        ["0", "10.0", "30.0"],
        ["2", "42.0", "–"],
        ["4", "42.0", "20.0"],
    ]
    assert ["0", "−5.0"] in page.rows
    assert re.findall(r"<strong>([\d.]+)</strong>", section) == ["30.0", "42.0", "31.0"]
    assert section.count(' role="img"') == 1
    assert "var(--series-1)" in section  # va, as in the results
    assert "var(--series-2)" in section  # hs, not among the results
    ids = re.findall(r'id="([^"]+)"', page.source)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'(?:url\(|href=")#([\w-]+)', page.source))
    assert targets <= set(ids)


@pytest.mark.drawn
def test_picture_and_data_are_written(with_layers: tuple[Grid, Path]) -> None:
    grid, folder = with_layers
    assert pq.read_table(folder / "layer_curves.parquet").equals(grid.layer_curves)
    with Image.open(folder / "figures" / "layer_curves.png") as picture:
        rgb = np.asarray(picture.convert("RGB"), dtype=np.int64)
    colours = {f"#{c:06x}" for c in np.unique(rgb @ [1 << 16, 1 << 8, 1]).tolist()}
    assert {*SERIES[1:3]} <= colours
    assert SERIES[0] not in colours, "mean has no curve"


def test_without_layer_curves_nothing_of_them_is_there(written: Path) -> None:
    source = (written / "report.html").read_text()
    assert "#layers" not in source
    assert "layer_curves" not in source
    assert not (written / "layer_curves.parquet").exists()


def test_segment_matching_makes_such_curves() -> None:
    rng = np.random.default_rng(0)
    layers = [(i, rng.normal(size=(12, 4)), rng.normal(size=(12, 4))) for i in range(3)]
    found = layer_curve("va", layers)
    table = pa.table(
        {
            "probe": ["segments"] * 3,
            "method": found.column("what"),
            "task": ["matching"] * 3,
            "layer": found.column("layer"),
            "score": found.column("recall@5"),
        }
    )
    (curve,) = read_layer_curves(table)
    assert curve.scores.tolist() == found.column("recall@5").to_pylist()


def test_names_are_escaped(make_grid, tmp_path: Path) -> None:
    evil = "<script>$x_"
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    grid.config = ReportConfig(title="t")
    grid.layer_curves = tidy({(evil, evil): {1: 0.5}})
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    assert "<script" not in source
    assert "&lt;script&gt;$x_" in source


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (tidy().slice(0, 0), "have 0 rows and the columns"),
        (
            tidy().drop_columns(["task"]),
            r"columns \['probe', 'method', 'layer', 'score'\], expected",
        ),
        (tidy().append_column("n", [[1] * 8]), "'n'"),
        (changed("score", [0.1, float("nan")] + [0.2] * 6), "score in row 2 of .* is nan"),
        (changed("score", ["high"] * 8), "'score': 'string'"),
        (changed("layer", [0.5] * 8), "expected texts, a whole number"),
        (changed("layer", [[0]] * 8), "expected texts, a whole number"),
        (changed("layer", [0, None, 4, 4, 0, 0, 2, 4]), "lack the layer of 1 rows"),
        (changed("layer", [2, 2, 4, 4, 0, 0, 2, 4]), "2 scores of 'va' on 'matching' at layer 2"),
    ],
)
def test_what_is_no_table_of_curves_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_layer_curves(table)


def test_a_refused_table_writes_nothing(make_grid, tmp_path: Path) -> None:
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    grid.config = ReportConfig(title="t")
    grid.layer_curves = changed("score", [float("inf")] * 8)
    with pytest.raises(InputError, match="is inf"):
        grid.write(tmp_path / "report")
    assert not (tmp_path / "report").exists()
