"""Maps of vectors in a report: from the files of the scores to panels, texts on marks, and the page."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from permafrost.stages.metrics.vector_map import VECTOR_MAP, MapNames, vector_map
from permafrost.stages.report.canvas import drawing, svg
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.maps import OTHERS, map_description, map_figure, read_task_maps
from permafrost.stages.report.palette import CONTROL
from permafrost.storage.errors import CorruptDataError
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_report import Page

TEXTS = np.arange(8, 12)


def add_maps(grid: Grid, texts: np.ndarray = TEXTS, n_classes: int = 2) -> Grid:
    """A map in every folder, of vectors that differ by cell."""
    for i, cell in enumerate(grid.cells):
        vectors = np.random.default_rng(i).normal(size=(len(texts), 5))
        table = vector_map(texts, np.arange(len(texts)) % n_classes, vectors)
        assert table is not None
        pq.write_table(table, cell.folder / VECTOR_MAP)
    return grid


def test_every_method_has_the_map_of_its_smallest_seed_and_controls_have_none(grid: Grid):
    add_maps(grid)
    found = read_task_maps(read_results(grid.cells[::-1]), grid.corpora)
    assert {m.task for m in found} == {"ratio 0.2", "ratio 0.8"}
    assert [m.figure for m in found] == ["map_1", "map_2"]
    for task_map in found:
        assert {m.method for m in task_map.methods} == {"mean", "scorer", "glot"}
        for method_map in task_map.methods:
            (cell,) = [
                c
                for c in grid.cells
                if (c.method, c.task, c.seed) == (method_map.method, task_map.task, 0)
            ]
            rows = pq.read_table(cell.folder / VECTOR_MAP)
            assert method_map.map.points[:, 0].tolist() == rows["x"].to_pylist()
        assert task_map.shown == {"absent": 0, "present": 1}
        assert not task_map.rest


def test_marks_carry_their_texts_and_stand_where_the_map_says(grid: Grid):
    (task_map, _) = read_task_maps(read_results(add_maps(grid).cells), grid.corpora)
    with drawing():
        figure, titles = map_figure(task_map)
        drawn = svg(figure, "f0", "a map", titles)
    assert len(titles) == 3 * 2
    root = ElementTree.fromstring(f"<figure>{drawn.markup}</figure>")
    marks = [e for e in root.iter("use") if e.find("title") is not None]
    assert len(marks) == 3 * len(TEXTS)
    corpus = grid.corpora["ratio 0.2"]
    for place, method_map in enumerate(task_map.methods):
        mine = marks[place * 4 : (place + 1) * 4]
        order = [0, 2, 1, 3]  # by class, then as in the map
        beginnings = [corpus.texts[TEXTS[i]] for i in order]
        for mark, text in zip(mine, beginnings, strict=True):
            title = mark.findtext("title") or ""
            assert text.startswith(title.removesuffix("…"))
            assert len(title) >= min(len(text), 85)
        x, y = ([float(m.attrib[name]) for m in mine] for name in "xy")
        points = method_map.map.points[order]
        assert np.corrcoef(x, points[:, 0])[0, 1] > 0.9999
        assert np.corrcoef(y, points[:, 1])[0, 1] < -0.9999, "pictures count from the top"


def test_long_names_of_methods_are_whole_above_their_panels(make_grid):
    names = ["AlignedWVA (first token)", "AlignedWVA (first token), selected", "mean", "max"]
    grid: Grid = make_grid(tasks=["t"], methods=names, controls=[], seeds=[0])
    (task_map,) = read_task_maps(read_results(add_maps(grid).cells), grid.corpora)
    with drawing():
        figure, _ = map_figure(task_map)
        FigureCanvasAgg(figure).draw()
        shown = [axes.get_title(loc="left") for axes in figure.axes]
        assert [" ".join(title.split("\n")) for title in shown] == names
        boxes = [axes.get_tightbbox() for axes in figure.axes]
    (legend,) = figure.legends
    top = legend.get_window_extent().y0
    assert all(box.y1 < top for box in boxes)
    assert boxes[3].y1 < boxes[0].y0, "the second row lies below the first"
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes[:3]))


def test_many_classes_are_drawn_with_the_rarest_together(make_grid):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    texts = np.arange(60) % 12
    add_maps(grid, texts, n_classes=11)
    (task_map,) = read_task_maps(read_results(grid.cells), grid.corpora)
    # 60 texts on 11 classes: the first five classes have six, the others five.
    assert list(task_map.shown) == ["absent", "present", "2", "3", "4", "5", "6"]
    assert task_map.rest == (7, 8, 9, 10)
    assert task_map.rest_name == OTHERS
    with drawing():
        figure, titles = map_figure(task_map)
    assert sum(map(len, titles.values())) == 60
    # The rest is grey and lies beneath the classes that have a mark of their own.
    lines = {line.get_gid(): line for line in figure.axes[0].get_lines()}
    rest = lines.pop("map-0-7")
    assert rest.get_markerfacecolor() == CONTROL
    assert all(rest.get_zorder() < line.get_zorder() for line in lines.values())
    assert CONTROL not in {line.get_markerfacecolor() for line in lines.values()}


@pytest.mark.deep
@pytest.mark.drawn
def test_the_page_has_a_section_with_a_figure_per_task(grid: Grid, tmp_path: Path):
    folder = add_maps(grid).write(tmp_path / "report")
    page = Page(folder / "report.html")
    assert 'href="#maps"' in page.source
    labels = [str(a["aria-label"]) for a in page.drawings]
    maps = read_task_maps(read_results(grid.cells), grid.corpora)
    assert [label for label in labels if "principal" in label] == [map_description(m) for m in maps]
    assert (folder / "figures" / "map_1.png").exists()
    assert (folder / "figures" / "map_2.png").exists()
    section = page.source[page.source.index('id="maps"') : page.source.index('id="tokens"')]
    assert not re.search(r"#[0-9a-f]{6}", section)
    assert section.count("<title>") == 2 * 3 * len(TEXTS)
    shares = maps[0].methods[0].map.shares
    for axis, share in zip(("PC1", "PC2"), shares, strict=True):
        assert f">{axis} ({share:.0%})</text>" in section


@pytest.mark.parametrize("n_classes", [2, 11])
def test_a_class_may_be_called_like_the_rest(make_grid, n_classes: int):
    grid: Grid = make_grid(tasks=["t"], methods=["a"], controls=[], seeds=[0])
    names = MapNames((OTHERS, *map(str, range(1, n_classes))), tuple(map(str, range(60))))
    vectors = np.random.default_rng(0).normal(size=(60, 4))
    table = vector_map(np.arange(60), np.arange(60) % n_classes, vectors, names)
    assert table is not None
    pq.write_table(table, grid.cells[0].folder / VECTOR_MAP)
    (task_map,) = read_task_maps(read_results(grid.cells), {})
    assert task_map.shown[OTHERS] == 0
    assert bool(task_map.rest) == (n_classes > 8)
    with drawing():
        figure, titles = map_figure(task_map)
    assert sum(map(len, titles.values())) == 60
    lines = {line.get_gid(): line for line in figure.axes[0].get_lines()}
    assert lines["map-0-0"].get_markerfacecolor() != CONTROL


def test_a_map_with_names_needs_no_corpus(make_grid):
    grid: Grid = make_grid(tasks=["t"], methods=["a", "b"], controls=[], seeds=[0])
    names = MapNames(("cold", "warm"), ("snow\nfalls", "sun " * 40))
    for cell in grid.cells:
        table = vector_map(np.array([5, 900]), np.arange(2), np.eye(2), names)
        assert table is not None
        pq.write_table(table, cell.folder / VECTOR_MAP)
    (task_map,) = read_task_maps(read_results(grid.cells), {})
    assert task_map.shown == {"cold": 0, "warm": 1}
    assert task_map.titles[5] == "snow falls"
    assert task_map.titles[900].endswith("…")
    assert len(task_map.titles[900]) <= 90
    assert [m.method for m in task_map.methods] == ["a", "b"]


def test_without_maps_there_is_no_section(written: Path):
    assert 'id="maps"' not in (written / "report.html").read_text()


def test_a_map_of_another_corpus_is_refused(grid: Grid, tmp_path: Path):
    add_maps(grid, np.array([3, 12]))
    with pytest.raises(CorruptDataError, match="names text 12 but the corpus has 12 texts"):
        grid.write(tmp_path / "report")
