"""Probes in a report: from a tidy table to curves, figure, data tables, choices and file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.palette import extended, marks
from permafrost.stages.report.probes import (
    PROBE_CURVES,
    probe_description,
    probe_figure,
    read_probes,
    shown,
)
from permafrost.stages.report.report import write_report
from permafrost.storage.errors import InputError
from tests.stages.report.fake_results import Grid, results_table
from tests.stages.report.test_report import Page

CAPTIONS = {"task_score": "A ring is the layer with the best dev score."}
DEV = {1: 0.5, 2: 0.7, 3: 0.6}
TEST = {1: 0.55, 2: 0.65, 3: 0.71}


def row(**fields: Any) -> dict[str, Any]:
    common = {
        "probe": "scores",
        "kind": "task_score",
        "axis": "layer",
        "method": "mean",
        "task": "sts",
        "measure": "dev accuracy",
        "unit": "share",
        "chosen": False,
    }
    return common | fields


def rows() -> list[dict[str, Any]]:
    """Layers in no order, `final` after the last one; one number that is no share; a second probe."""
    found = [
        row(measure=f"{split} accuracy", x=float(k), at=str(k), value=v, chosen=k == 2)
        for split, values in (("dev", DEV), ("test", TEST))
        for k, v in sorted(values.items(), reverse=True)
    ]
    found += [row(method="first", x=x, at=at, value=0.4) for x, at in ((4.0, "final"), (1.0, "1"))]
    other = {"probe": "shape <b>", "kind": "unknown", "axis": "tau", "measure": "mean degree"}
    found += [row(**other, unit="number", x=0.5, at="0.5", value=12.345)]
    return found


def table(content: list[dict[str, Any]]) -> pa.Table:
    columns = {name: [r[name] for r in content] for name in PROBE_CURVES.names}
    return pa.table(columns, schema=PROBE_CURVES)


@pytest.fixture
def report(make_grid, tmp_path: Path) -> Path:
    grid: Grid = make_grid(tasks=["sts"], methods=["mean", "va"], controls=[], seeds=[0])
    folder = tmp_path / "report"
    write_report(
        ReportConfig(title="t"),
        grid.cells,
        grid.corpora,
        lambda _: {},
        grid.provenance,
        folder,
        probes=table(rows()),
        probe_captions=CAPTIONS,
    )
    return folder


def test_curves_are_in_the_order_of_x_and_know_what_was_chosen() -> None:
    scores, shape = read_probes(table(rows()), CAPTIONS)
    assert (scores.name, scores.kind, scores.axis) == ("scores", "task_score", "layer")
    assert (scores.figure, shape.figure) == ("probe_1_task_score", "probe_2_unknown")
    found = {(c.method, c.measure): c for c in scores.curves}
    assert list(found) == [
        ("mean", "dev accuracy"),
        ("mean", "test accuracy"),
        ("first", "dev accuracy"),
    ]
    assert found["mean", "dev accuracy"].x.tolist() == [1, 2, 3]
    assert found["mean", "dev accuracy"].values.tolist() == list(DEV.values())
    assert found["mean", "test accuracy"].chosen == 1
    assert found["first", "dev accuracy"].at == ("1", "final")
    assert found["first", "dev accuracy"].chosen is None
    (choice,) = scores.choices()
    assert (choice.method, choice.task, choice.at) == ("mean", "sts", "2")
    assert choice.measures == (("dev accuracy", "70.0"), ("test accuracy", "65.0"))
    assert (scores.caption, shape.caption) == (CAPTIONS["task_score"], "")
    assert scores.rows("sts") == [
        ("1", ["50.0", "55.0", "40.0"]),
        ("2", ["70.0", "65.0", ""]),
        ("3", ["60.0", "71.0", ""]),
        ("final", ["", "", "40.0"]),
    ]
    words = probe_description(scores)
    assert "dev accuracy of mean on sts 50.0 to 70.0" in words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, "share", "12.3"),
        (-0.05, "share", "−5.0"),
        (0.1234, "number", "0.123"),
        (-0.5, "number", "−0.5"),
        (123.4, "number", "123"),
        (1234.5, "number", "1,234"),
    ],
)
def test_numbers_are_shown_by_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_the_figure_has_a_panel_per_measure_and_rings_where_dev_chose(grid: Grid) -> None:
    scores, shape = read_probes(table(rows()), CAPTIONS)
    all_marks = extended(marks(results_table(grid.cells)), scores.methods)
    with drawing():
        figure = probe_figure(scores, all_marks)
        number = probe_figure(shape, all_marks)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "dev accuracy × 100",
        "test accuracy × 100",
    ]
    dev, test = figure.axes
    assert dev.get_ylim() == test.get_ylim(), "dev and test share a scale"
    ring = [line for line in dev.lines if line.get_markersize() == 10]
    assert [(r.get_xdata()[0], r.get_ydata()[0]) for r in ring] == [(2, pytest.approx(70))]  # pyright: ignore[reportIndexIssue]
    assert [t.get_text() for t in dev.get_xticklabels()] == ["1", "2", "3", "final"]
    (axes,) = number.axes
    assert axes.get_title(loc="left") == "mean degree"
    assert axes.lines[0].get_ydata()[0] == pytest.approx(12.345)  # pyright: ignore[reportIndexIssue]


def test_many_places_are_thinned_and_the_last_is_named(grid: Grid) -> None:
    content = [row(x=float(k), at=str(k), value=0.5) for k in range(33)]
    (probe,) = read_probes(table(content), {})
    with drawing():
        figure = probe_figure(probe, extended(marks(results_table(grid.cells)), probe.methods))
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert len(labels) <= 8
    assert labels[-1] == "32"


def test_several_tasks_have_panels_of_their_own(grid: Grid) -> None:
    content = [row(task=t, x=1.0, at="1", value=0.5) for t in ("a" * 40, "$b_")]
    (probe,) = read_probes(table(content), {})
    with drawing():
        figure = probe_figure(probe, extended(marks(results_table(grid.cells)), probe.methods))
    first, second = (axes.get_title(loc="left") for axes in figure.axes)
    assert first.startswith("aaa")
    assert "…" in first
    assert second.startswith(r"\$b_")


@pytest.mark.deep
@pytest.mark.drawn
def test_page_picture_and_file_hold_the_probes(report: Path) -> None:
    assert pq.read_table(report / "probes.parquet").equals(table(rows()))
    page = Page(report / "report.html")
    assert {"href": "#probes"} in page.all("a")
    section = page.source[page.source.index('id="probes"') : page.source.index('id="tokens"')]
    assert section.count(' role="img"') == 2
    assert "<h3>scores</h3>" in section
    assert "<h3>shape &lt;b&gt;</h3>" in section
    assert CAPTIONS["task_score"] in section
    assert ["sts", "mean", "2", "dev accuracy 70.0, test accuracy 65.0"] in page.rows
    assert ["final", "–", "–", "40.0"] in page.rows
    assert ["0.5", "12.3"] in page.rows
    assert "<code>probes.parquet</code>" in page.source
    ids = re.findall(r'id="([^"]+)"', page.source)
    assert len(ids) == len(set(ids))
    for name in ("probe_1_task_score", "probe_2_unknown"):
        with Image.open(report / "figures" / f"{name}.png") as picture:
            assert np.asarray(picture.convert("RGB")).std() > 1


def test_without_probes_nothing_of_them_is_there(written: Path) -> None:
    assert "probes" not in (written / "report.html").read_text()
    assert not (written / "probes.parquet").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table(rows()).drop_columns(["at"]), "expected"),
        (table([row(x=1.0, at="1", value=float("nan"))]), "'mean' on 'sts'. is nan at 1.0"),
        (table([row(x=float("inf"), at="1", value=1.0)]), "row 1 .* is 1.0 at inf"),
    ],
)
def test_what_is_no_table_of_probes_is_refused(content: pa.Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_probes(content, {})
