"""Graphs of torch-geometric as a user's tables: what they become, and what is refused."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, HeteroData

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
    "no split": (data(split=None), "has None as split, expected text"),
    "several types": (HeteroData(), "graph 1 of the data is a HeteroData"),
}


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
