"""Corpora with graphs: numbered, saved, opened again, by us and by other tools."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.graphs.assembling import Case, Item, assemble, corpus_of_items
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.node_types import (
    ANSWER_ENTITY,
    OTHER,
    QUERY_ENTITY,
    QUERY_NODE,
    n_relations,
)
from permafrost.stages.graphs.relation_words import in_words
from permafrost.stages.graphs.views import descriptions_view, labels_view
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.keys import text_digest
from tests.stages.graphs.small_graphs import RELATIONS, choices, matches, search

ALL = [choices, matches, search]


@pytest.mark.parametrize("make", ALL)
def test_a_saved_corpus_loads_equal_and_is_a_plain_corpus_too(
    make: Callable[[], GraphCorpus], tmp_path: Path
) -> None:
    corpus = make()
    corpus.save(tmp_path)
    assert GraphCorpus.load(tmp_path) == corpus
    plain = Corpus.load(tmp_path)
    assert type(plain) is Corpus
    assert plain == Corpus(
        corpus.texts, corpus.examples, corpus.task, corpus.label_names, corpus.digests
    )
    assert corpus != matches() or make is matches


def test_equal_corpora_save_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        search().save(tmp_path / name)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert "documents.parquet" in files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_a_graph_gets_a_query_node_its_edges_and_every_inverse() -> None:
    corpus = choices()
    graphs, R = corpus.graphs, len(RELATIONS)
    nodes, edges = graphs.nodes_of(0), graphs.edges_of(0)
    assert graphs.node_label[nodes].tolist() == [-1, 0, 1, 2]
    assert [corpus.labels[i] for i in range(3)] == ["cup", "kitchen", "tea"]
    # The cup is named by both: it is an entity of the query.
    assert graphs.node_type[nodes].tolist() == [QUERY_NODE, QUERY_ENTITY, ANSWER_ENTITY, OTHER]
    assert graphs.node_relevance[nodes].tolist() == [0, 0.5, -1, 0.25]
    columns = (graphs.edge_source, graphs.edge_relation, graphs.edge_target)
    rows = list(zip(*(c[edges].tolist() for c in columns), strict=True))
    forward = [
        (1, 0, 2),
        (3, 1, 1),
        (0, R, 1),
        (0, R + 1, 2),
    ]  # the triple given twice is there once
    assert rows == [*forward, *((t, r + R + 2, h) for h, r, t in forward)]


@pytest.mark.parametrize(("raw", "all_of_them"), [(17, 38), (15, 34), (372, 748), (161, 326)])
def test_relation_59_number_of_relations(raw: int, all_of_them: int) -> None:
    assert n_relations(raw) == all_of_them


def test_the_relations_of_a_corpus_have_names_the_inverse_ones_too() -> None:
    corpus = choices()
    assert corpus.n_relations == n_relations(len(RELATIONS)) == 8
    assert corpus.relation_names[: len(RELATIONS)] == RELATIONS
    assert corpus.relation_names[4:] == tuple(f"^{n}" for n in corpus.relation_names[:4])


def test_choices_are_one_plain_example_each_and_one_case_together() -> None:
    corpus = choices()
    assert corpus.task == "multiple_choice"
    test = corpus.case_split("test")
    (items,), (label,) = test.column("items").to_pylist(), test.column("label").to_pylist()
    texts = [corpus.texts[corpus.items.column("text")[i].as_py()] for i in items]
    assert texts == ["where is cup 3? harbour", "nowhere"]
    assert label == 1
    assert corpus.items.column("graph")[items[1]].as_py() == -1
    query = corpus.items.column("query")[items[0]].as_py()
    assert corpus.texts[query] == "where is cup 3?"
    plain = corpus.split("test")
    assert plain.column("label").to_pylist() == [0.0, 1.0]
    assert [corpus.texts[i] for i in plain.column("text").to_pylist()] == texts
    with pytest.raises(NotFoundError, match=r"no cases in a split 'other'.*train, dev, test"):
        corpus.case_split("other")


def test_a_search_has_documents_judgements_and_relevant_pairs_as_examples() -> None:
    corpus = search()
    text = corpus.items.column("text").to_pylist()
    assert [corpus.texts[text[i]] for i in corpus.documents] == [f"document {n}" for n in range(3)]
    assert corpus.judgements.column("grade").to_pylist() == [1, 0, 2]
    pairs = corpus.examples.select(["text", "text_pair"]).to_pylist()
    assert [tuple(corpus.texts[i] for i in pair.values()) for pair in pairs] == [
        ("query 0", "document 0"),
        ("query 1", "document 1"),
    ]
    assert corpus.cases.num_rows == 3


def test_a_description_has_the_graphs_own_edges_in_words() -> None:
    corpus = choices()
    assert corpus.description(0) == "cup at location kitchen; tea is a cup"
    assert search().description(0) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("birthPlace", "birth place"),
        ("birth_place", "birth place"),
        ("LCCN_number", "LCCN number"),
        ("isbnNumber", "isbn number"),
        ("ISBNNumber", "ISBN number"),
        ("/r/RelatedTo", "r related to"),
        ("atlocation", "atlocation"),
        ("1st_runway_LengthFeet", "1st runway length feet"),
        ("_", "_"),
    ],
)
def test_names_of_relations_are_split_into_words(name: str, words: str) -> None:
    assert in_words(name) == words


def test_other_tools_read_a_saved_corpus(tmp_path: Path) -> None:
    """Parquet and JSON alone, without a line of ours, give a graph for torch-geometric."""
    corpus = choices()
    corpus.save(tmp_path)
    nodes, edges = (
        pq.read_table(tmp_path / f"{name}.parquet", filters=[("graph", "=", 1)])
        for name in ("nodes", "edges")
    )
    head = json.loads((tmp_path / "graphs.json").read_text())
    data = Data(
        num_nodes=nodes.num_rows,
        edge_index=torch.tensor([edges["source"].to_pylist(), edges["target"].to_pylist()]),
        edge_type=torch.tensor(edges["relation"].to_pylist()),
    )
    assert data.validate()
    assert data.is_undirected()
    assert nodes["text"].to_pylist() == [None, "cup", "harbour", "tea"]
    types = [head["node_types"][t] for t in nodes["type"].to_pylist()]
    assert types == ["query node", "query entity", "answer entity", "other"]
    own = [
        n for r, n in zip(data.edge_type.tolist(), edges["name"].to_pylist(), strict=True) if r < 2
    ]
    assert own == ["atLocation", "isA"]


def test_labels_are_a_plain_corpus(tmp_path: Path) -> None:
    corpus = choices()
    view = labels_view(corpus)
    assert list(view.texts) == list(corpus.labels)
    assert list(view.digests) == [text_digest(label) for label in corpus.labels]
    assert view.examples.column("text").to_pylist() == list(range(len(corpus.labels)))
    view.save(tmp_path)
    assert Corpus.load(tmp_path) == view


def test_descriptions_are_a_plain_corpus_with_an_example_per_item() -> None:
    corpus = choices()
    rows = {
        place: [view.texts[i] for i in view.examples.column("text").to_pylist()]
        for place in ("before", "after")
        for view in [descriptions_view(corpus, place)]
    }
    assert len(rows["before"]) == corpus.items.num_rows
    description = "cup at location kitchen; tea is a cup"
    assert rows["before"][0] == f"{description} where is cup 0? kitchen"
    assert rows["after"][0] == f"where is cup 0? kitchen {description}"
    assert rows["before"][-1] == rows["after"][-1] == "nowhere"


@pytest.mark.parametrize(
    ("max_tokens", "text", "n_left_out"),
    [
        (13, "cup at location kitchen; tea is a cup where is cup 0? kitchen", 0),
        (12, "cup at location kitchen where is cup 0? kitchen", 7),
        (9, "cup at location kitchen where is cup 0? kitchen", 7),
        (8, "where is cup 0? kitchen", 14),
        (2, "where is cup 0? kitchen", 14),
    ],
)
def test_a_long_description_loses_triples_and_the_text_nothing(
    max_tokens: int, text: str, n_left_out: int
) -> None:
    def too_long(texts: Sequence[str]) -> list[bool]:
        return [len(text.split()) > max_tokens for text in texts]

    view = descriptions_view(choices(), "before", too_long)
    assert view.texts[view.examples.column("text")[0].as_py()] == text
    # Seven items have a graph, of two triples.
    assert view.counts()["n_triples"] == 14
    assert view.counts()["n_triples_left_out"] == n_left_out


def test_a_corpus_without_any_node_is_refused() -> None:
    graphs = GraphCollector(1)
    case = Case("train", (Item("text", graphs.add([], [])),), 0)
    with pytest.raises(InputError, match="none of the 1 graphs has a node"):
        assemble("classification", [case], graphs, ["r"])
    with pytest.raises(InputError, match="there are no examples"):
        assemble("classification", [], graphs, ["r"])


def test_an_empty_graph_is_a_graph_of_its_query_node() -> None:
    graphs = GraphCollector(1)
    empty, other = graphs.add([], []), graphs.add(["a"], [])
    _, columns = graphs.finish()
    assert columns.nodes_of(empty) == slice(0, 1)
    assert columns.edges_of(empty) == slice(0, 0)
    assert columns.nodes_of(other) == slice(1, 3)


DAMAGE: dict[str, Callable[[pa.Table], pa.Table]] = {
    "edges": lambda t: t.set_column(2, t.schema.field(2), pa.array([99] * t.num_rows, pa.int32())),
    "nodes": lambda t: t.slice(1),
    "items": lambda t: t.set_column(1, t.schema.field(1), pa.array([77] * t.num_rows, pa.int64())),
    "cases": lambda t: t.drop_columns(["label"]),
    "labels": lambda t: t.slice(2),
}


@pytest.mark.parametrize("file", DAMAGE)
def test_what_does_not_fit_together_is_damage(file: str, tmp_path: Path) -> None:
    choices().save(tmp_path)
    path = tmp_path / f"{file}.parquet"
    pq.write_table(DAMAGE[file](pq.read_table(path)), path)
    with pytest.raises(CorruptDataError, match="holds no graphs of format 1"):
        GraphCorpus.load(tmp_path)


def test_a_format_that_is_not_known_and_a_plain_corpus_are_refused(tmp_path: Path) -> None:
    choices().save(tmp_path)
    head = json.loads((tmp_path / "graphs.json").read_text())
    (tmp_path / "graphs.json").write_text(json.dumps(head | {"format": 2}))
    with pytest.raises(CorruptDataError, match=r"graphs\.json has format 2"):
        GraphCorpus.load(tmp_path)
    (tmp_path / "graphs.json").unlink()
    assert Corpus.load(tmp_path).task == "multiple_choice"
    with pytest.raises(CorruptDataError, match="holds no graphs of format 1"):
        GraphCorpus.load(tmp_path)


def test_whether_nodes_are_scored_is_kept_and_does_not_depend_on_the_scores(tmp_path: Path) -> None:
    for name, relevance in (("scored", [0.0]), ("bare", None)):
        graphs = GraphCollector(1)
        graphs.add([], [])
        graphs.add(["a"], [], relevance=relevance)
        corpus, _ = corpus_of_items([Item("x", 1)], graphs, ["r"])
        assert corpus.graphs.are_scored == (relevance is not None)
        (tmp_path / name).mkdir()
        corpus.save(tmp_path / name)
        assert GraphCorpus.load(tmp_path / name) == corpus
    head = json.loads((tmp_path / "scored" / "graphs.json").read_text())
    assert head.pop("are_scored")
    (tmp_path / "scored" / "graphs.json").write_text(json.dumps(head))
    assert not GraphCorpus.load(tmp_path / "scored").graphs.are_scored, "as it was read before"


def test_a_relevance_that_is_no_number_is_refused() -> None:
    graphs = GraphCollector(1)
    graphs.add(["a"], [], relevance=[float("nan")])
    _, columns = graphs.finish()
    assert np.isnan(columns.node_relevance).any()
    with pytest.raises(ValueError, match="not a finite number"):
        columns.require_sound(1, 1)
