"""Searches with subgraphs of a knowledge graph for queries and documents."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from permafrost.stages.graphs.linked import LinkedSource
from permafrost.stages.graphs.node_types import (
    QUERY_ENTITY,
    QUERY_NODE,
)
from permafrost.stages.graphs.sources.graph_retrieval import GraphRetrieval
from permafrost.storage.errors import InputError
from tests.stages.graphs.small_knowledge import knowledge
from tests.stages.graphs.small_linked import (
    ADAPTER,
    built,
    graph_of,
    other_links,
    require_all_counted,
    table,
    texts,
)

DOCUMENTS = [
    {"doc_id": "1", "title": "Dogs", "text": "in the park"},
    {"doc_id": "2", "title": "", "text": "birds and trees"},
    {"doc_id": "3", "title": "", "text": " "},
]
QUERIES = [
    {"query_id": f"q{n}", "text": t}
    for n, t in enumerate(("bird animals", "dogs", "dogs", "ice cream", "zzz"))
]
JUDGED = [("q0", "1", 1), ("q1", "1", 1), ("q2", "2", 1), ("q3", "2", 1), ("q3", "1", 0)]
TESTED = [("q4", "2", 2), ("q4", "1", 0)]


def search(folder: Path, **fields: Any) -> LinkedSource:
    table(folder, "corpus", DOCUMENTS)
    table(folder, "queries", QUERIES)
    for name, rows in (("qrels_train", JUDGED), ("qrels_test", TESTED)):
        table(folder, name, [{"query_id": q, "doc_id": d, "score": s} for q, d, s in rows])
    config = {
        "kind": "graph_retrieval",
        "path": str(folder),
        "knowledge": knowledge(folder),
        **fields,
    }
    source = ADAPTER.validate_python(config)
    assert isinstance(source, LinkedSource)
    return source


def test_queries_and_all_documents_have_graphs(tmp_path: Path) -> None:
    corpus = built(search(tmp_path))
    assert [texts(corpus)[item] for item in corpus.documents] == [
        "Dogs in the park",
        "birds and trees",
    ], "blank documents are not searched"
    first = corpus.cases.to_pylist()[0]
    assert [texts(corpus)[item] for item in first["items"]] == ["bird animals", "Dogs in the park"]
    assert graph_of(corpus, first["items"][0]) == {
        "": QUERY_NODE,
        "bird": QUERY_ENTITY,
        "animal": QUERY_ENTITY,
    }
    assert graph_of(corpus, first["items"][1]) == {
        "": QUERY_NODE,
        "dog": QUERY_ENTITY,
        "park": QUERY_ENTITY,
    }
    assert (corpus.task, corpus.cases.num_rows, corpus.examples.num_rows) == ("unlabelled", 5, 5)
    judged = [(row["split"], row["grade"]) for row in corpus.judgements.to_pylist()]
    assert judged == [("test", 2), ("test", 0)], "also what is not relevant; none of train"


def test_dev_queries_are_held_out_by_text(tmp_path: Path) -> None:
    splits: set[tuple[str, ...]] = set()
    for seed in range(8):
        corpus = built(search(tmp_path, n_dev_queries=1, dev_seed=seed))
        held = corpus.case_split("dev").column("items").to_pylist()
        names = {texts(corpus)[query] for query, _ in held}
        assert len(names) == 1
        left = {texts(corpus)[q] for q, _ in corpus.case_split("train").column("items").to_pylist()}
        assert not names & left, "queries with equal texts stay together"
        assert len(left) == 2
        rows = corpus.judgements.to_pylist()
        assert sum(r["split"] == "dev" for r in rows) == sum(
            q["text"] in names for k, _, _ in JUDGED for q in QUERIES if q["query_id"] == k
        )
        splits.add(tuple(sorted(names)))
    assert len(splits) > 1, "another seed, another choice"


def test_searches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"n_dev_queries is 3, but .* 3 distinct"):
        search(tmp_path, n_dev_queries=3).build()
    with pytest.raises(ValidationError, match="leave n_dev_queries out"):
        search(tmp_path, n_dev_queries=1, qrels={"train": "qrels_train", "dev": "qrels_test"})
    table(tmp_path, "qrels_dev", [{"query_id": "q0", "doc_id": "1", "score": 1}])
    with pytest.raises(InputError, match="leave n_dev_queries out"):
        search(tmp_path, n_dev_queries=1).facts()
    (tmp_path / "qrels_dev.parquet").unlink()
    source = search(tmp_path)
    table(tmp_path, "qrels_test", [{"query_id": "q0", "doc_id": "3", "score": 1}])
    with pytest.raises(InputError, match="judges the document '3', which is blank"):
        source.build()


def test_every_field_of_a_search_is_among_its_facts(tmp_path: Path) -> None:
    def make(folder: Path = tmp_path, **fields: Any) -> LinkedSource:
        return search(folder, **fields)

    names = ("query_id", "document_id", "qrels_query_id", "qrels_document_id", "query", "document")
    others = {
        **other_links(tmp_path),
        **dict.fromkeys((*names, "title", "relevance"), "other"),
        **{name: table(tmp_path, "other", [{"a": name}]) for name in ("corpus", "queries")},
        "qrels": {"test": "qrels_test"},
        "n_dev_queries": 1,
        "dev_seed": 1,
    }
    fields = {*GraphRetrieval.model_fields} - {"path"}
    require_all_counted(make, others, fields, tmp_path / "moved")
