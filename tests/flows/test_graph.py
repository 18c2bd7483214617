"""Nodes are data: they have keys, they travel, and equal ones are one."""

import json
import pickle
from pathlib import Path

import pytest
import yaml

from permafrost.flows.build import build_graph
from permafrost.flows.experiment import load_experiment
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
