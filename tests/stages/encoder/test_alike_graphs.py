"""Graphs of new texts are made as those of training were, or refused."""

import csv
from pathlib import Path
from typing import Any, cast

import pytest

from permafrost.stages.encoder.graph_text import FittedGraphText
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.finetune.module import ModelFacts
from permafrost.stages.finetune.trained import Finetuned
from permafrost.stages.graphs.given import TextRows
from permafrost.stages.graphs.node_types import QUERY_ENTITY
from permafrost.storage.artifacts import ArtifactRef
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.finetune.tiny_graphs import config_of, pairs

RELATIONS = ("in",)
NO_TARGET = cast(ExtractTarget, None)
NODES = [("graph", "node", "text"), ("g1", "1", "cup"), ("g1", "2", "kitchen")]
TRIPLES = [("head", "relation", "tail"), ("cup", "in", "kitchen")]
TEXT = "tea is hot. where is the cup? kitchen"
TEXTS = [("text", "graph", "asked", "choice"), (TEXT, "g1", "where is the cup?", "kitchen")]


def fitted(**source: Any) -> FittedGraphText:
    config = config_of(pairs(), {"kind": "qa_gnn"})
    tuned = Finetuned(config, ModelFacts(6, 1, 1, 0, True), 1, 0.0, {}, RELATIONS, RELATIONS)
    ref = ArtifactRef(stage="finetune", key="0" * 64)
    settings = {"kind": "graphs", **source}
    return FittedGraphText(ref, tuned, NO_TARGET, None, "before", settings)


def table(path: Path, rows: list[tuple[str, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def texts(folder: Path) -> TextRows:
    return TextRows([TEXT], table(folder / "texts.csv", TEXTS))


def graphs(folder: Path, kind: str, **fields: str) -> dict[str, Any]:
    edges = [("graph", "source", "target", "relation"), ("g1", "1", "2", "in")]
    given: dict[str, dict[str, Any]] = {
        "tables": {
            "nodes": str(table(folder / "nodes.csv", NODES)),
            "edges": str(table(folder / "edges.csv", edges)),
        },
        "linked": {
            "knowledge": {"kind": "triples", "path": str(table(folder / "known.csv", TRIPLES))}
        },
    }
    return {"kind": kind, **given[kind], **fields}


LINKED: dict[str, Any] = {"knowledge": {"kind": "triples"}}
UNLIKE: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "linked otherwise": ({"linking": "none"}, "tables", "set linking: none"),
    "facts in the text": (
        {"with_facts": {"kind": "gold"}, "graph_per": "choice"},
        "linked",
        "name them in 'query' and 'answer'",
    ),
    "of questions": ({"graph_per": "question"}, "linked", "give graphs of kind 'tables'"),
    "no choice": (
        {"graph_per": "choice"},
        "linked",
        "no column of the question and none of the choice; name them in 'query' and 'answer'",
    ),
    "larger": (
        {"max_nodes": 50},
        "linked",
        "max_nodes is 200, and the model was trained with 50; set max_nodes: 50",
    ),
    "of longer phrases": ({"max_words": 9}, "linked", "trained with 9; set max_words: 9"),
    "scored": (
        {"node_relevance": {"kind": "cosine", "backbone": {}}},
        "linked",
        "node_relevance is 'none', and the model was trained with 'cosine'",
    ),
    "no question": ({"query_text": "question"}, "tables", "do not tell it from the text"),
    "triples": ({"query_text": "question"}, None, "do not tell it from the text"),
    "triples of linked nodes": (
        {"knowledge": {"kind": "triples"}},
        None,
        "linked by lemma, and triples do not tell which nodes these are; give graphs of kind 'linked'",
    ),
    "triples of typed nodes": (
        {"node_columns": ["type"]},
        None,
        "trained on nodes with type, which triples do not have; give graphs of kind 'tables'",
    ),
    "tables of linked nodes": (
        {"knowledge": {"kind": "triples"}},
        "tables",
        "linking is label_in_text, and .*nodes.csv has .* column 'type'; .* so name them in 'type'",
    ),
    "tables of typed nodes": (
        {"node_columns": ["type", "relevance"]},
        "tables",
        "nodes.csv has neither, and the nodes .* had 'type' and 'relevance'; add 'type' and 'relevance'$",
    ),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_graphs_made_otherwise_than_in_training_are_refused(tmp_path: Path, name: str) -> None:
    source, kind, message = UNLIKE[name]
    given: Any = [TRIPLES[1:]] if kind is None else graphs(tmp_path, kind)
    alike = LINKED if kind == "linked" else {}
    fitted(**alike).corpus(texts(tmp_path), given, SilentProgress())
    with pytest.raises(InputError, match=message):
        fitted(**alike, **source).corpus(texts(tmp_path), given, SilentProgress())


@pytest.mark.parametrize(
    ("source", "columns", "message"),
    [
        ({"graph_per": "choice"}, {"query": "asked", "answer": "choice"}, None),
        (
            {"graph_per": "choice"},
            {"query": "asked"},
            "no column of the choice; name it in 'answer'$",
        ),
        # Linked as a whole, words of question and choice are one phrase.
        ({"graph_per": "choice"}, {"answer": "choice"}, "of the question; name it in 'query'$"),
        ({}, {}, None),
        ({}, {"answer": "choice"}, r"without a choice.*\(answer: choice\); leave 'answer' out$"),
        ({}, {"query": "asked"}, r"linked as a whole.*\(query: asked\); leave 'query' out$"),
        ({}, {"query": "asked", "answer": "choice"}, "; leave 'query' and 'answer' out$"),
    ],
)
def test_question_and_choice_are_told_apart_as_in_training(
    tmp_path: Path, source: dict[str, str], columns: dict[str, str], message: str | None
) -> None:
    given = graphs(tmp_path, "linked", **columns)
    model = fitted(**LINKED, **source)
    if message is None:
        model.corpus(texts(tmp_path), given, SilentProgress())
        return
    with pytest.raises(InputError, match=message):
        model.corpus(texts(tmp_path), given, SilentProgress())


def test_linked_graphs_are_refused_where_those_of_training_were_given(tmp_path: Path) -> None:
    given = graphs(tmp_path, "linked")
    for kind in ("graphs", "webnlg_pairs"):
        with pytest.raises(InputError, match=rf"kind '{kind}'.* give graphs of kind 'tables'"):
            fitted(kind=kind).corpus(texts(tmp_path), given, SilentProgress())


@pytest.mark.parametrize(
    ("trained", "columns", "message"),
    [
        (["type", "relevance"], ["type", "relevance"], None),
        ([], ["type"], "has 'type', and the nodes .* had neither; take 'type' out$"),
        (["type"], ["relevance"], "add 'type' and take 'relevance' out$"),
        (["type", "relevance"], ["type"], "had 'type' and 'relevance'; add 'relevance'$"),
    ],
)
def test_nodes_have_the_columns_of_training(
    tmp_path: Path, trained: list[str], columns: list[str], message: str | None
) -> None:
    given = graphs(tmp_path, "tables")
    Path(given["nodes"]).unlink()
    values = {"type": "other", "relevance": "0"}
    header, *rows = NODES
    extra = tuple(values[name] for name in columns)
    table(tmp_path / "nodes.csv", [(*header, *columns), *((*row, *extra) for row in rows)])
    model = fitted(node_columns=trained) if trained else fitted()
    if message is None:
        corpus, _ = model.corpus(texts(tmp_path), given, SilentProgress())
        assert corpus.graphs.are_scored, "though each score is 0"
        return
    with pytest.raises(InputError, match=message):
        model.corpus(texts(tmp_path), given, SilentProgress())


def test_the_graphs_themselves_must_be_given(tmp_path: Path) -> None:
    for wrong in (5, "cup"):
        with pytest.raises(InputError, match=r"the graphs are .*; give a list with the triples"):
            fitted().corpus(texts(tmp_path), wrong, SilentProgress())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a text of graph 0 is .* half of a surrogate pair"):
        fitted().corpus(texts(tmp_path), [[("cup\ud800", "in", "kitchen")]], SilentProgress())


def test_a_table_says_what_the_entities_are_of_nodes_linked_by_lemma(tmp_path: Path) -> None:
    given = graphs(tmp_path, "tables", linking="none")
    model = fitted(knowledge={"kind": "triples"}, graph_per="choice")
    header, *rows = NODES
    typed = [(*header, "type"), *((*row, "answer entity") for row in rows)]
    for written, is_taken in ((NODES, "type" in header), (typed, True)):
        Path(given["nodes"]).unlink()
        table(tmp_path / "nodes.csv", written)
        if is_taken:
            corpus, _ = model.corpus(texts(tmp_path), given, SilentProgress())
        else:
            with pytest.raises(InputError, match="has no column 'type'"):
                model.corpus(texts(tmp_path), given, SilentProgress())
    assert set(corpus.graphs.node_type.tolist()) == {1, 3}


@pytest.mark.parametrize("written", ["answer entity", "1"])
def test_a_table_has_no_answers_where_texts_had_no_choice(tmp_path: Path, written: str) -> None:
    given = graphs(tmp_path, "tables", linking="none")
    model = fitted(**LINKED)
    header, *rows = NODES
    for last, message in (("query entity", None), (written, r"row 2 of .*nodes.csv is an answer")):
        Path(given["nodes"]).unlink()
        typed = zip(rows, ("other", last), strict=True)
        table(tmp_path / "nodes.csv", [(*header, "type"), *((*row, kind) for row, kind in typed)])
        if message is None:
            model.corpus(texts(tmp_path), given, SilentProgress())
            continue
        with pytest.raises(InputError, match=message):
            model.corpus(texts(tmp_path), given, SilentProgress())


def test_triples_are_linked_as_the_graphs_of_training() -> None:
    n_edges: dict[str, int] = {}
    for linking in ("label_in_text", "none"):
        corpus, _ = fitted(linking=linking).corpus(
            TextRows(["the cup"]), [TRIPLES[1:]], SilentProgress()
        )
        n_edges[linking] = len(corpus.graphs.edge_source)
    assert n_edges == {"label_in_text": 4, "none": 2}, "with an edge of the query node, or without"


def test_labels_of_triples_are_read_as_those_of_training() -> None:
    raw = [("Aarhus_Airport", "in", '"Aarhus, Denmark"')]
    clean = [("Aarhus Airport", "in", "Aarhus, Denmark")]
    rows = TextRows(["Aarhus Airport serves Aarhus, Denmark."])
    for kind, given, labels in (
        ("webnlg_pairs", raw, clean[0][::2]),
        ("webnlg_pairs", clean, clean[0][::2]),
        ("graphs", raw, raw[0][::2]),
    ):
        corpus, _ = fitted(kind=kind).corpus(rows, [given], SilentProgress())
        assert tuple(corpus.labels) == labels
        assert (corpus.graphs.node_type == QUERY_ENTITY).sum() == (
            2 if labels == clean[0][::2] else 0
        )


def test_a_knowledge_graph_is_of_the_language_of_training(tmp_path: Path) -> None:
    given = graphs(tmp_path, "linked")
    with pytest.raises(InputError, match=r"language is 'en', .* trained on one in 'de'"):
        fitted(**LINKED, labels_language="de").corpus(texts(tmp_path), given, SilentProgress())


def test_facts_are_neither_linked_nor_where_query_nodes_start(tmp_path: Path) -> None:
    model = fitted(
        **LINKED,
        query_text="question",
        with_facts={"kind": "gold"},
        graph_per="choice",
        max_nodes=200,
        node_relevance={"kind": "none"},
    )
    given = graphs(tmp_path, "linked", query="asked", answer="choice")
    corpus, _ = model.corpus(texts(tmp_path), given, SilentProgress())
    (item,) = corpus.items.to_pylist()
    assert corpus.texts[item["text"]] == TEXT
    assert corpus.texts[item["query"]] == "where is the cup?"


def test_nodes_are_scored_for_question_and_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in training, where facts are no part of what nodes are scored for."""
    from permafrost.stages.graphs.relevances.none import NoRelevance

    scored: list[str] = []
    real = NoRelevance.scores

    def scores(self: Any, labels: Any, texts: Any, nodes: Any, *rest: Any) -> Any:
        scored.extend(texts)
        return real(self, labels, texts, nodes, *rest)

    monkeypatch.setattr(NoRelevance, "scores", scores)
    for source, fields in (
        ({"graph_per": "choice"}, {"query": "asked", "answer": "choice"}),
        ({}, {}),
    ):
        given = graphs(tmp_path, "linked", **fields)
        fitted(**LINKED, **source).corpus(texts(tmp_path), given, SilentProgress())
    assert scored == ["where is the cup? kitchen", TEXT]
