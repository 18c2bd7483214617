"""Attention in graphs: which cases and nodes are shown, how much attention they get, and the drawing."""

import math
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from permafrost.stages.graphs.node_types import NODE_TYPES
from permafrost.stages.metrics.graph_attention import EDGES, NODES
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.graph_layout import places
from permafrost.stages.report.graph_picture import (
    TYPE_NAMES,
    WIDTH,
    picture,
    picture_description,
    standalone,
)
from permafrost.stages.report.palette import CUSTOM_PROPERTIES
from permafrost.stages.report.subgraphs import GraphExample, Subgraph, graph_examples
from permafrost.storage.errors import CorruptDataError
from tests.stages.report.attended_graphs import item, kitchen, save_items
from tests.stages.report.fake_results import Grid
from tests.stages.report.test_report import Page

pytestmark = pytest.mark.deep


def shown(grid: Grid, n: int = 4, **chosen: tuple[str, ...]) -> tuple[GraphExample, ...]:
    config = grid.config.model_copy(update={"n_examples": n, "graphs_of": chosen})
    return graph_examples(read_results(grid.cells), config, grid.corpora)


def only(grid: Grid, *items: object) -> Subgraph:
    """The graph of one item, on the first cell."""
    save_items(grid.cells[0].folder, *items)  # type: ignore[arg-type]
    (example,) = shown(grid, 1)
    return example.graphs[0]


def wide(n: int) -> object:
    """A graph of n nodes: node 1 is named by the text, all others hang on each other in a line."""
    labels = [f"node {i}" for i in range(1, n + 1)]
    chain = [(i, "next", i + 1) for i in range(1, n)]
    return item(0, labels, [0] + [2] * (n - 1), chain)


def test_two_equal_choices_are_drawn_as_two(grid: Grid) -> None:
    """They are one item of the corpus, and were counted as one graph with twice its nodes."""
    (graph,) = (only(grid, kitchen(3, "kitchen", right=True, given=True)),)
    twins = [
        kitchen(3, "kitchen", place=0, right=True, given=False),
        kitchen(3, "kitchen", place=1, right=False, given=True),
    ]
    save_items(grid.cells[0].folder, *twins)
    (example,) = shown(grid, 1)
    assert [(a.is_right, a.is_given) for a in example.answers] == [(True, False), (False, True)]
    assert [(g.nodes, g.edges, g.n_nodes) for g in example.graphs] == [
        (graph.nodes, graph.edges, graph.n_nodes)
    ] * 2


def test_types_have_the_names_of_the_graphs() -> None:
    assert {at: name.removesuffix(" node") for at, name in sorted(TYPE_NAMES.items())} == dict(
        enumerate(name.removesuffix(" node") for name in NODE_TYPES)
    )


def test_attention_of_a_node_is_what_it_gets_in_units_of_the_mean(grid: Grid) -> None:
    nodes, edges = kitchen(0, "kitchen")
    graph = only(grid, (nodes, edges))
    got = {row["node"]: row["attention"] for row in nodes}
    for row in edges:
        got[row["target"]] += row["attention"]
    assert sum(got.values()) == pytest.approx(len(nodes))
    assert [n.attention for n in graph.nodes] == pytest.approx([got[i] for i in range(4)])
    assert [(n.label, n.type) for n in graph.nodes] == [
        ("text", 3),
        ("cup", 0),
        ("kitchen", 1),
        ("water", 2),
    ]
    # A softmax over incoming edges is the same with every edge turned around.
    turned = [{**row, "source": row["target"], "target": row["source"]} for row in edges]
    again = only(grid, (nodes, turned))
    assert [n.attention for n in again.nodes] == pytest.approx([got[i] for i in range(4)])


def test_an_edge_and_its_inverse_are_one_line_with_a_direction(grid: Grid) -> None:
    nodes, edges = item(0, ["a", "b"], [0, 2], [(2, "isA", 1), (2, "partOf", 1), (1, "hasA", 2)])
    graph = only(grid, (nodes, edges))
    (query, between) = graph.edges
    assert (query.ends, query.is_of_query) == ((0, 1), True)
    assert (between.ends, between.forward, between.backward) == (
        (1, 2),
        ("hasA",),
        ("isA", "partOf"),
    )
    for way, (source, target) in enumerate([(1, 2), (2, 1)]):
        weights = [e["attention"] for e in edges if (e["source"], e["target"]) == (source, target)]
        assert between.attention[way] == pytest.approx(sum(weights))


def test_of_a_large_graph_what_the_text_names_is_shown_and_what_hangs_on_it(grid: Grid) -> None:
    graph = only(grid, wide(60))
    assert (len(graph.nodes), graph.n_nodes, graph.n_left_out) == (25, 61, 36)
    # The ends of the line get the most attention, but only its beginning is joined to the text.
    assert [n.label for n in graph.nodes] == ["text", *(f"node {i}" for i in range(1, 25))]
    assert only(grid, wide(24)).n_left_out == 0


def test_questions_show_the_right_choice_and_the_given_one(grid: Grid) -> None:
    verdicts = {"desk": (False, True), "kitchen": (True, False), "moon": (False, False)}
    items = [
        kitchen(i, choice, right=right, given=given)
        for i, (choice, (right, given)) in enumerate(verdicts.items())
    ]
    save_items(grid.cells[0].folder, *items)
    (example,) = shown(grid, 1)
    assert example.text == "where is the cup?"
    assert {a.text: (a.is_right, a.is_given) for a in example.answers} == verdicts
    assert [g.caption for g in example.graphs] == ["kitchen", "desk"]
    assert [g.nodes[2].label for g in example.graphs] == ["kitchen", "desk"]
    assert not example.is_correct
    again = [kitchen(0, "desk", right=False, given=False), kitchen(1, "kitchen")]
    save_items(grid.cells[0].folder, *again)
    (example,) = shown(grid, 1)
    assert ([g.caption for g in example.graphs], example.is_correct) == (["kitchen"], True)


def test_pairs_show_their_classes(grid: Grid) -> None:
    save_items(grid.cells[0].folder, kitchen(0, "kitchen", right=True, given=False))
    (example,) = shown(grid, 1)
    assert example.text == "where is the cup? kitchen"
    assert [(a.text, a.is_right, a.is_given) for a in example.answers] == [
        ("absent", False, True),
        ("present", True, False),
    ]


def test_the_best_on_dev_is_best_over_its_seeds_and_by_the_first_metric(grid: Grid) -> None:
    """The first seed of `mean` is lucky; `glot` has higher numbers, of another metric."""
    devs = {"mean": (0.9, 0.1, 0.1), "scorer": (0.6, 0.6, 0.6), "glot": (0.99, 0.99, 0.99)}
    for i, cell in enumerate(grid.cells):
        if cell.role == "method":
            metric = "f1" if cell.method == "glot" else "accuracy"
            grid.edit_metrics(i, dev=devs[cell.method][cell.seed], metric=metric)
            save_items(cell.folder, kitchen(0, "kitchen"))
    assert {(e.method, e.seed) for e in shown(grid)} == {("scorer", 0)}


def test_each_task_shows_its_best_method_on_dev_and_the_cases_are_spread(grid: Grid) -> None:
    for i, cell in enumerate(grid.cells):
        grid.edit_metrics(i, dev=0.9 if cell.method in ("scorer", "shuffled") else 0.5)
        save_items(cell.folder, *(kitchen(n, "kitchen", case=n) for n in range(5)))
    examples = shown(grid, 5)
    assert [(e.task, e.method, e.seed) for e in examples] == [
        (task, "scorer", 0)
        for task in ("ratio 0.2", "ratio 0.8", "ratio 0.2", "ratio 0.8", "ratio 0.2")
    ]
    assert shown(grid, 0) == ()


@pytest.mark.deep
def test_of_a_task_with_chosen_cases_all_that_were_kept_are_shown(
    grid: Grid, tmp_path: Path
) -> None:
    for cell in grid.cells:
        save_items(cell.folder, *(kitchen(n, "kitchen", case=n) for n in range(5)))
    chosen = {"ratio 0.8": ("cup",)}
    found = shown(grid, 2, **chosen)
    assert Counter(e.task for e in found) == {"ratio 0.2": 2, "ratio 0.8": 5}
    grid.config = grid.config.model_copy(update={"n_examples": 0, "graphs_of": chosen})
    page = (grid.write(tmp_path / "report") / "report.html").read_text()
    section = page[page.index('id="graphs"') : page.index('id="errors"')]
    assert section.count('class="subgraph"') == 5
    assert "chosen by the experiment (<code>graphs_of</code>) on ratio 0.8, and" in section


@pytest.mark.parametrize("is_found", [True, False])
def test_a_search_shows_the_query_the_first_document_and_a_relevant_one(
    grid: Grid, is_found: bool, tmp_path: Path
) -> None:
    for i in range(len(grid.cells)):
        grid.edit_metrics(i, metric="ndcg_at_10")
    nothing = {"right": False, "given": False}
    named = item(0, ["cup"], [0], [], text="the cup", **nothing)
    first = item(7, ["cup", "tea"], [2, 2], [(1, "in", 2)], text="of tea", right=is_found)
    bare = item(9, [], [], [], text="of cups", right=True, given=False)
    save_items(grid.cells[0].folder, named, first, *([] if is_found else [bare]))
    (example,) = shown(grid, 1)
    assert (example.text, example.is_correct) == ("the cup", is_found)
    answers = [("of tea", is_found, True), *([] if is_found else [("of cups", True, False)])]
    assert [(a.text, a.is_right, a.is_given) for a in example.answers] == answers
    # A document without a graph of its own has nothing to draw.
    assert [g.caption for g in example.graphs] == ["the query", "of tea"]
    grid.config = grid.config.model_copy(update={"n_examples": 1})
    page = (grid.write(tmp_path / "report") / "report.html").read_text()
    section = page[page.index('id="graphs"') : page.index('id="errors"')]
    verdict = "✓ first document relevant" if is_found else "✗ first document not relevant"
    assert verdict in section
    assert section.count(">found first</span>") == section.count(">relevant</span>") == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [1, 2, 3, 12, 25])
def test_nodes_have_room_and_stay_inside(n: int) -> None:
    rng = np.random.default_rng(n)
    edges = [(int(rng.integers(i)), i) for i in range(1, n)]
    boxes = np.tile([40.0, 8.0, 40.0, 20.0], (n, 1))
    found = places(edges, boxes, 640, 130 + 17 * n)
    assert found.tolist() == places(edges, boxes, 640, 130 + 17 * n).tolist()
    low, high = found - boxes[:, :2], found + boxes[:, 2:]
    assert (low >= -1e-6).all()
    assert (high <= np.array([640, 130 + 17 * n]) + 1e-6).all()
    for a in range(n):
        for b in range(a):
            apart = np.maximum(low[a] - high[b], low[b] - high[a])
            assert apart.max() > -1, (a, b)


def test_the_drawing_has_every_node_once_in_its_shape_and_size(grid: Grid) -> None:
    graph = only(grid, kitchen(0, "<kitchen>"))
    root = ElementTree.fromstring(str(picture(graph, "a & b")))
    assert root.attrib["aria-label"] == "a & b"
    space = "{http://www.w3.org/2000/svg}"
    nodes = [g for g in root.iter(f"{space}g") if g.get("class") == "node"]
    titles = [g.findtext(f"{space}title") for g in nodes]
    assert titles == [
        f"{n.label} · {TYPE_NAMES[n.type]} · {n.attention:.2g}× the mean attention"
        for n in graph.nodes
    ]
    shapes = [g[1].tag.removeprefix(space) for g in nodes]
    assert shapes == ["rect", "circle", "path", "circle"]
    # The area is the attention.
    cup, water = (float(nodes[i][1].attrib["r"]) for i in (1, 3))
    ratio = math.sqrt(graph.nodes[1].attention / graph.nodes[3].attention)
    assert cup / water == pytest.approx(ratio, rel=0.01)
    edges = [g for g in root.iter(f"{space}g") if g.get("class") == "edge"]
    said = [g.findtext(f"{space}title") or "" for g in edges]
    assert len(said) == 4
    assert any(s.startswith("cup — atLocation → <kitchen>\nattention 0.") for s in said)
    # Names of relations are written where there is room; those of the query node are not.
    names = {t.text for g in edges for t in g.findall(f"{space}text")}
    assert names == {"atLocation", "usedFor"}
    assert "4 shown" in picture_description(graph)


def test_a_graph_of_the_query_node_alone_is_drawn(grid: Grid) -> None:
    graph = only(grid, item(0, [], [], []))
    assert [n.attention for n in graph.nodes] == [1.0]
    assert f'viewBox="0 0 {WIDTH:g} 150"' in picture(graph, "")


def test_a_page_has_drawings_in_its_own_colours_and_files_in_fixed_ones(
    grid: Grid, tmp_path: Path
) -> None:
    save_items(
        grid.cells[0].folder,
        kitchen(0, "<kitchen>"),
        kitchen(1, "desk", right=False, given=False),
    )
    grid.config = grid.config.model_copy(update={"n_examples": 1})
    folder = grid.write(tmp_path / "report")
    page = Page(folder / "report.html")
    assert {"href": "#graphs"} in page.all("a")
    section = page.source[page.source.index('id="graphs"') : page.source.index('id="errors"')]
    assert section.count('class="subgraph"') == 1
    assert not re.search(r"#[0-9a-f]{6}", section)
    used = set(re.findall(r"var\(--[\w-]+\)", section))
    assert used <= set(CUSTOM_PROPERTIES.values())
    assert "where is the cup?" in section
    assert "&lt;kitchen&gt;" in section
    assert "<kitchen>" not in section
    alone = (folder / "figures" / "graph_1.svg").read_text()
    assert "var(" not in alone
    ElementTree.fromstring(alone)
    assert standalone(str(picture(shown(grid, 1)[0].graphs[0], "x"))).count("<svg") == 1


def test_a_file_of_a_drawing_is_xml_whatever_a_label_holds(grid: Grid) -> None:
    odd = item(0, ["cup\x01\x0c\x0b\ufffe", "\U0001f375 <tea>"], [0, 2], [(1, "is\x02in", 2)])
    root = ElementTree.fromstring(standalone(str(picture(only(grid, odd), "a \x07 bell"))))
    assert "\U0001f375 <tea>" in "".join(root.itertext())


def test_without_graphs_there_is_no_section(written: Path) -> None:
    assert 'id="graphs"' not in (written / "report.html").read_text()
    assert not list((written / "figures").glob("*.svg"))


def test_damaged_files_are_named(grid: Grid) -> None:
    folder = grid.cells[0].folder
    save_items(folder, kitchen(0, "kitchen"))
    (folder / EDGES).unlink()
    with pytest.raises(CorruptDataError, match="holds no attention in graphs"):
        shown(grid)
    (folder / NODES).write_bytes(b"no parquet")
    with pytest.raises(CorruptDataError, match="holds no attention in graphs"):
        shown(grid)
