"""Graphs of torch-geometric as a user's tables: what they become, and what is refused."""

from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

import permafrost
from permafrost.storage.errors import InputError
from tests.stages.graphs.test_user_graphs import built, nodes_of


def data(**changed: Any) -> Data:
    """The graph g1 as torch-geometric has it."""
    fields = {
        "edge_index": torch.tensor([[0, 2], [1, 0]]),
        "edge_type": torch.tensor([0, 1]),
        "node_text": ["cup", "kitchen", "tea"],
        "text": "the cup is here",
        "split": "train",
        "y": torch.tensor([1]),
    }
    return Data(num_nodes=3, **{k: v for k, v in {**fields, **changed}.items() if v is not None})


def test_graphs_of_torch_geometric_become_tables(tmp_path: Path) -> None:
    many = [
        data(text=f"{split} the cup {y}", split=split, y=y)
        for split in ("train", "dev", "test")
        for y in (0, 1)
    ]
    fields = permafrost.graphs_from_data(many, tmp_path / "mine", ["atLocation", "in"])
    assert set(fields) == {"kind", "task", "nodes", "edges", "examples"}
    corpus = built(fields)
    assert corpus.description(0) == "cup at location kitchen; tea in cup"
    assert corpus.splits == ("train", "dev", "test")
    assert nodes_of(corpus, 0) == {"": 3, "cup": 0, "kitchen": 2, "tea": 2}
    with pytest.raises(InputError, match=r"nodes\.parquet exists; give another folder"):
        permafrost.graphs_from_data(many, tmp_path / "mine", ["atLocation", "in"])


@pytest.mark.parametrize("yes", [True, torch.tensor([True])])
def test_true_and_false_are_the_classes_1_and_0(tmp_path: Path, yes: Any) -> None:
    many = [data(y=yes, edge_type=torch.tensor([False, True])), data(y=False)]
    fields = permafrost.graphs_from_data(many, tmp_path, ["atLocation", "in"])
    assert pd.read_parquet(fields["examples"])["label"].tolist() == [1, 0]
    assert pd.read_parquet(fields["edges"])["relation"].tolist()[:2] == ["atLocation", "in"]


def test_choices_of_torch_geometric_belong_to_questions(tmp_path: Path) -> None:
    many = [
        data(text=f"{split} the cup or {y}", split=split, y=y, case=case)
        for case, split in enumerate(("train", "dev", "test"))
        for y in (0, 1, 0)
    ]
    fields = permafrost.graphs_from_data(many, tmp_path, ["atLocation", "in"])
    corpus = built(fields)
    assert corpus.task == "multiple_choice"
    assert corpus.cases.column("label").to_pylist() == [1, 1, 1]
    assert [len(items) for items in corpus.cases.column("items").to_pylist()] == [3, 3, 3]
    named = [data(case="first", y=torch.tensor([1])), data(case="first", y=0)]
    with pytest.raises(
        InputError, match=r"graph 2 of the data has no case, and graph 0 .* has one"
    ):
        permafrost.graphs_from_data([*named, data()], tmp_path / "b", ["atLocation", "in"])
    with pytest.raises(
        InputError, match=r"graph 0 of the data has 0\.5 as case, expected the name"
    ):
        permafrost.graphs_from_data([data(case=0.5)], tmp_path / "b", ["atLocation", "in"])
    with pytest.raises(
        InputError, match=r"graph 0 of the data has True as case, expected the name"
    ):
        permafrost.graphs_from_data([data(case=True)], tmp_path / "b", ["atLocation", "in"])


def test_a_search_among_graphs_of_torch_geometric_has_judgements(tmp_path: Path) -> None:
    texts = ["where is the cup", "who has a spade", "all about kitchens", "all about gardens"]
    many = [data(text=text, split=None, y=None) for text in texts]
    judged = [(s, q, d, int(q + 2 == d)) for s, q in SEARCHED for d in (2, 3)]
    fields = permafrost.graphs_from_data(many, tmp_path / "a", ["atLocation", "in"], judged)
    corpus = built(fields)
    assert corpus.task == "unlabelled"
    assert len(corpus.documents) == 2
    assert corpus.judgements.column("grade").to_pylist() == [grade for *_, grade in judged]
    for wrong, message in {
        ("test", 0, 4, 1): r"judgement 1 names graph 4, but there are 4, numbered from 0",
        ("test", 0, 2): r"judgement 1 is .* expected a split",
        ("test", 0, 2, 0.5): r"judgement 1 is .* and a grade, a whole number",
        5: r"judgement 1 is 5, expected a split",
    }.items():
        with pytest.raises(InputError, match=message):
            permafrost.graphs_from_data(
                many,
                tmp_path / "b",
                ["atLocation", "in"],
                [judged[0], wrong],  # type: ignore[list-item]
            )
    with pytest.raises(InputError, match="there are no judgements; give at least one"):
        permafrost.graphs_from_data(many, tmp_path / "b", ["atLocation", "in"], [])
    assert not (tmp_path / "b").exists()


def test_nodes_of_torch_geometric_may_have_a_relevance(tmp_path: Path) -> None:
    scored = data(node_relevance=torch.tensor([0.5, -1.0, 2.0]))
    fields = permafrost.graphs_from_data([scored], tmp_path / "a", ["atLocation", "in"])
    assert pd.read_parquet(fields["nodes"])["relevance"].tolist() == [0.5, -1.0, 2.0]
    two, not_a_number = torch.tensor([0.5, 1.0]), torch.tensor([0.5, 1.0, float("nan")])
    for wrong in (two, not_a_number, ["a", 1, 2], [0.5, 1, 1e39]):
        with pytest.raises(InputError, match=r"as node_relevance, expected 3 finite numbers"):
            permafrost.graphs_from_data(
                [data(node_relevance=wrong)], tmp_path / "b", ["atLocation", "in"]
            )


SEARCHED = [("train", 0), ("train", 1), ("dev", 0), ("test", 1)]
WRONG: dict[str, tuple[object, str]] = {
    "kinds of node of a heterogeneous graph": (
        data(node_type=torch.tensor([0, 1, 0])),
        r"graph 1 of the data has node_type, .* in node_role, and take node_type away \(del data",
    ),
    "an unknown role": (
        data(node_role=[0, 1, 4]),
        "as node_role, expected 3 whole numbers from 0 to 3",
    ),
    "two query nodes": (
        data(node_role=[3, 1, 3]),
        "graph 1 of the data has 2 query nodes, 0, 2, expected one at most; give the others",
    ),
    "a number for edges": (data(edge_type=0), "has 0 as edge_type, expected 2 whole numbers"),
    "a number for nodes": (data(node_relevance=0.5), "has 0.5 as node_relevance, expected 3"),
    "a list of edges": (data(edge_index=[[0], [1]]), "as edge_index, expected a tensor of shape"),
    "half of a character": (
        data(node_text=["cup", "kitchen", "t\ud800"]),
        r"node_text\[2\] of graph 1 of the data is .*, whose character 1 is half of a surrogate pair",
    ),
    "half of a character in the text": (data(text="\udc00"), "text of graph 1 of the data is "),
    "an edge to no node": (
        data(edge_index=torch.tensor([[0, 2], [1, 3]])),
        "graph 1 of the data has an edge to node 3, but its nodes",
    ),
    "too few texts": (data(node_text=["cup"]), "3 nodes and 1 texts in node_text"),
    "no texts": (data(node_text=None), "has None as node_text"),
    "unknown relation": (data(edge_type=torch.tensor([0, 2])), "whole numbers from 0 to 1"),
    "no relation": (data(edge_type=None), "has no edge_type, but there are 2 relations"),
    "a score for a class": (
        data(y=torch.tensor([0.5])),
        "has 0.5 as y, expected the number of its class",
    ),
    "a blank node": (
        data(node_text=["cup", " ", "tea"]),
        r"graph 1 of the data has the blank text ' ' as node_text\[1\]; give the node a text",
    ),
    "a blank text": (data(text=""), "graph 1 of the data has the blank text '' as text"),
    "another split": (
        data(split="valid"),
        "graph 1 of the data is of the split 'valid', which is not one of train, dev, test",
    ),
    "no split": (data(split=None), "has None as split, expected text"),
    "relations elsewhere": (
        data(edge_type=None, edge_attr=torch.tensor([[0], [1]])),
        r"has edge_attr and no edge_type, .* in edge_type, or delete edge_attr \(del data.edge_attr\)",
    ),
    "weights of edges": (
        data(edge_type=None, edge_weight=torch.ones(2)),
        "has edge_weight and no edge_type",
    ),
    "several types": (HeteroData(), "graph 1 of the data is a HeteroData"),
}
NAMES: dict[str, tuple[Any, str]] = {
    "one text": ("isA", r"relations is 'isA', expected a list of names"),
    "a blank one": (["in", " "], r"relations is \['in', ' '\], expected a list of names"),
    "twice": (["in", "in"], "relations names 'in' twice; name every relation once"),
    "twice but for spaces": (["in", "in "], "names 'in' and 'in ', which are one name without"),
    "a query node's": (["in", "answer entity"], "relations names 'answer entity'; .* another name"),
    "an inverse one": (["in", " ^in"], r"relations names ' \^in'; names that begin with \^"),
}


@pytest.mark.parametrize("name", NAMES)
def test_relations_that_are_no_list_of_names_are_refused(name: str, tmp_path: Path) -> None:
    relations, message = NAMES[name]
    with pytest.raises(InputError, match=message):
        permafrost.graphs_from_data([data()], tmp_path / "mine", relations)
    assert not (tmp_path / "mine").exists()


def test_names_of_relations_are_trimmed_as_those_of_tables_are(tmp_path: Path) -> None:
    fields = permafrost.graphs_from_data([data()], tmp_path, [" atLocation", "in\n"])
    assert pd.read_parquet(fields["edges"])["relation"].tolist() == ["atLocation", "in"]


def test_a_graph_without_nodes_is_a_text_without_a_graph(tmp_path: Path) -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    bare = {"num_nodes": 0, "node_text": [], "edge_index": none, "text": "tea", "y": 1}
    empty = Data(**bare, split="test")
    many = [data(), data(y=0), data(split="dev"), empty]
    fields = permafrost.graphs_from_data(many, tmp_path / "a", ["atLocation", "in"])
    assert built(fields).items.column("graph").to_pylist() == [0, 1, 2, -1]
    judged = [(split, 3, 0, 1) for split in ("train", "dev", "test")]
    fields = permafrost.graphs_from_data(many, tmp_path / "b", ["atLocation", "in"], judged)
    assert built(fields).items.column("graph").to_pylist() == [-1, 0]
    with pytest.raises(InputError, match="none of the 2 graphs has a node; give at least one"):
        permafrost.graphs_from_data([empty, empty], tmp_path / "c")


def test_one_graph_or_a_batch_is_no_list_of_graphs(tmp_path: Path) -> None:
    # The signature says so too, and tests check it.
    jaxtyping.config.update("jaxtyping_disable", True)
    batch = Batch.from_data_list([data(), data()])
    for wrong, message in (
        (data(), r"data is a single Data, expected a list of them; give \[data\]"),
        (HeteroData(), "data is a single HeteroData, expected a list"),
        (batch, r"of 2 graphs, expected a list of them; give batch.to_data_list\(\)"),
    ):
        with pytest.raises(InputError, match=message):
            permafrost.graphs_from_data(wrong, tmp_path / "mine", ["atLocation", "in"])  # type: ignore[arg-type]


def test_arrays_of_numpy_are_read_as_tensors_are(tmp_path: Path) -> None:
    relevance, roles = [0.5, 1.0, 2.0], [0, 1, 2]
    one = data(node_relevance=torch.tensor(relevance), node_role=torch.tensor(roles))
    other = data(
        edge_index=np.array([[0, 2], [1, 0]]),
        edge_type=np.array([0, 1]),
        node_relevance=np.array(relevance, np.float32),
        node_role=[np.int64(role) for role in roles],
        y=np.int64(1),
    )
    folders = [tmp_path / name for name in "ab"]
    for graph, folder in zip((one, other), folders, strict=True):
        permafrost.graphs_from_data([graph], folder, ["atLocation", "in"])
    for name in ("nodes", "edges", "examples"):
        tables = [pd.read_parquet(folder / f"{name}.parquet") for folder in folders]
        assert tables[0].equals(tables[1])
    assert pd.read_parquet(folders[0] / "nodes.parquet")["type"].tolist() == roles


def test_there_are_as_many_nodes_as_texts_where_nothing_else_says_it(tmp_path: Path) -> None:
    """torch-geometric counts the ends of edges, and the last node may have none."""
    lone = Data(
        node_text=["cup", "kitchen", "tea"],
        edge_index=torch.tensor([[0], [1]]),
        text="a cup",
        split="train",
        y=0,
    )
    bare = Data(node_text=["cup"], text="a cup", split="dev", y=1)
    fields = permafrost.graphs_from_data([lone, bare], tmp_path)
    assert pd.read_parquet(fields["nodes"])["graph"].tolist() == [0, 0, 0, 1]
    with pytest.raises(InputError, match="2 nodes and 1 texts in node_text"):
        permafrost.graphs_from_data(
            [Data(**{**bare.to_dict(), "x": torch.ones(2, 4)})], tmp_path / "b"
        )


def test_a_heterogeneous_graph_becomes_one_of_one_kind(tmp_path: Path) -> None:
    graph = HeteroData()
    graph["person"].x, graph["place"].x = torch.ones(2, 1), torch.ones(1, 1)
    graph["person", "in", "place"].edge_index = torch.tensor([[0, 1], [0, 0]])
    plain = graph.to_homogeneous(add_node_type=False)
    plain.node_text, plain.text = ["Ann", "Bob", "Oslo"], "What is the weather?"
    plain.y, plain.split = 0, "train"
    fields = permafrost.graphs_from_data([plain], tmp_path, ["in"])
    assert pd.read_parquet(fields["nodes"]).columns.tolist() == ["graph", "node", "text"]
    assert pd.read_parquet(fields["edges"])["relation"].tolist() == ["in", "in"]


@pytest.mark.parametrize("name", WRONG)
def test_graphs_that_lack_something_are_refused_and_nothing_is_written(
    name: str, tmp_path: Path
) -> None:
    wrong, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        permafrost.graphs_from_data([data(), wrong], tmp_path / "mine", ["atLocation", "in"])  # type: ignore[list-item]
    assert not (tmp_path / "mine").exists()
    with pytest.raises(InputError, match="there are no graphs"):
        permafrost.graphs_from_data([], tmp_path / "mine")
