"""Nodes are data: they have keys, they travel, and equal ones are one."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.graph import Graph, Node
from permafrost.flows.stage import stage_of
from tests.flows.conftest import tiny_experiment
from tests.flows.engine.sums import total


@pytest.fixture
def tiny(tiny_bert: Path, tmp_path: Path) -> Graph:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment(tiny_bert), sort_keys=False))
    return build_graph(load_experiment(path)).graph


def test_every_node_travels_as_json_and_as_a_pickle_without_its_ancestors(tiny: Graph) -> None:
    for node in tiny:
        text = node.model_dump_json()
        assert Node.model_validate_json(text) == node
        assert Node.model_validate(json.loads(text)).id == node.id
        assert pickle.loads(pickle.dumps(node)).id == node.id
        assert stage_of(node).name == node.stage
    sizes = [len(pickle.dumps(node)) for node in tiny if node.stage != "report"]
    assert max(sizes) < 64_000, "a node holds no other node"


def test_nothing_of_this_machine_is_in_a_key(tiny: Graph, tiny_bert: Path) -> None:
    for node in tiny:
        assert str(tiny_bert.parent) not in node.spec.model_dump_json(), node.label


def test_a_node_comes_after_all_that_it_needs(tiny: Graph) -> None:
    seen = set[str]()
    for node in tiny.ordered():
        assert seen.issuperset(node.upstream), node.label
        seen.add(node.id)
    assert len(seen) == len(tiny)


def test_a_fit_waits_for_the_extraction_of_its_own_corpus_and_no_other(tiny: Graph) -> None:
    (extraction,) = [n for n in tiny if n.label == "extract ratio 0.2"]
    fits = [n for n in tiny if n.label.startswith("fit ")]
    waiting = {n.label for n in fits if extraction.id in n.upstream}
    assert waiting == {n.label for n in fits if "ratio 0.2" in n.label}
    assert extraction.id not in {i.ref for n in fits for i in n.inputs}, "order, not identity"


def grid(path: Path, **fields: Any) -> dict[str, Node]:
    """Fits of GLOT with one seed on one task, by label."""
    experiment = yaml.safe_load(path.read_text())
    glot = experiment["methods"]["GLOT"] | fields
    plain = {"kind": "head", "head": glot["head"], "layer": "hidden/3", "optim": glot["optim"]}
    small = {
        "methods": {"GLOT": glot, "plain": plain},
        "capture": "hidden=all@tokens",
        "seeds": [0],
    }
    tasks = {name: experiment["tasks"][name] for name in ("ratio 0.2",)}
    report = {"title": "A grid", "x_axis": {"kind": "tasks"}}
    path.write_text(
        yaml.safe_dump(experiment | small | {"tasks": tasks, "report": report}, sort_keys=False)
    )
    graph = build_graph(load_experiment(path)).graph
    return {n.label: n for n in graph if n.stage in ("fit", "choose")}


def test_a_layer_that_a_grid_gains_is_one_node_more(tiny: Graph, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    before = grid(path, grid={"layer": ["hidden/2", "hidden/3"]})
    after = grid(path, grid={"layer": ["hidden/1", "hidden/2", "hidden/3"]})
    cell = "GLOT · ratio 0.2 · seed 0"
    assert list(after) == [
        *(f"fit {cell} · layer hidden/{i}" for i in (1, 2, 3)),
        f"choose {cell}",
    ], "a plain head with the same settings is the candidate, and has no node of its own"
    new = {n.id for n in after.values()} - {n.id for n in before.values()}
    assert new == {after[f"fit {cell} · layer hidden/1"].id, after[f"choose {cell}"].id}


def test_candidates_of_a_patient_grid_wait_for_the_one_before(tiny: Graph, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    free = list(grid(path, grid={"layer": ["hidden/1", "hidden/2", "hidden/3"]}).values())
    fits = list(
        grid(path, grid={"layer": ["hidden/1", "hidden/2", "hidden/3"]}, grid_patience=1).values()
    )[:3]
    assert [[i.ref for i in n.inputs_named("before")] for n in fits] == [
        [],
        [fits[0].id],
        [fits[1].id],
    ]
    assert fits[0].id == free[0].id, "the first one has nothing to beat"
    assert fits[1].id != free[1].id


def test_equal_nodes_are_one_and_wait_for_what_either_waits_for() -> None:
    a, b = total("a", 1), total("b", 2)
    first, second = total("first", 3, after=(a,)), total("second", 3, after=(b,))
    assert first.id == second.id
    graph = Graph([a, b, first, second])
    assert [n.label for n in graph] == ["a", "b", "first"]
    assert graph[first.id].upstream == (a.id, b.id)


def test_a_need_that_is_no_node_is_noticed() -> None:
    a = total("a", 1)
    with pytest.raises(AssertionError, match="'b' needs"):
        Graph([total("b", 2, a)])
