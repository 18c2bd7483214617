"""Pairs for training from documents, queries and judgements, and from labelled candidates."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.storage.errors import InputError
from tests.real_files import DATA, needs_data

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
Rows = list[dict[str, Any]]

DOCUMENTS = [
    {"doc_id": "a", "title": "Snow", "text": "falls in winter "},
    {"doc_id": "b", "title": "", "text": " ice is hard"},
    {"doc_id": "c", "title": "Lake", "text": "has fish"},
    {"doc_id": "blank", "title": "", "text": " "},
]
QUERIES = [
    {"query_id": 1, "text": "what falls"},
    {"query_id": 2, "text": "what is hard"},
    {"query_id": 3, "text": "where are fish"},
    {"query_id": 4, "text": "what falls"},
]
TRAIN = [
    {"query_id": 1, "doc_id": "a", "score": 1},
    {"query_id": 2, "doc_id": "b", "score": 2},
    {"query_id": 2, "doc_id": "a", "score": 0},
    {"query_id": 2, "doc_id": "c", "score": 1},
    {"query_id": 4, "doc_id": "b", "score": 1},
]
TEST = [{"query_id": 3, "doc_id": "c", "score": 1}, {"query_id": 3, "doc_id": "a", "score": 1}]


def write(folder: Path, **tables: Rows) -> Path:
    content = {"corpus": DOCUMENTS, "queries": QUERIES, "qrels_train": TRAIN, "qrels_test": TEST}
    for name, rows in (content | tables).items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


def retrieval(folder: Path, **fields: Any) -> CorpusConfig:
    qrels = {"train": "qrels_train", "test": "qrels_test"}
    given = {"kind": "retrieval", "path": str(folder), "qrels": qrels, **fields}
    return ADAPTER.validate_python(given)


def pairs(corpus: Corpus) -> list[tuple[str, str, str]]:
    """Split, first and second text of every example."""
    rows = corpus.examples.to_pylist()
    return [(r["split"], corpus.texts[r["text"]], corpus.texts[r["text_pair"]]) for r in rows]


def test_every_relevant_document_is_a_pair_with_its_query(tmp_path: Path) -> None:
    config = retrieval(write(tmp_path))
    corpus = config.build()
    snow, ice, lake = "Snow falls in winter", "ice is hard", "Lake has fish"
    assert pairs(corpus) == [
        ("train", "what falls", snow),
        ("train", "what is hard", ice),
        ("train", "what is hard", lake),
        ("train", "what falls", ice),
        ("test", "where are fish", lake),
        ("test", "where are fish", snow),
    ]
    assert (corpus.task, config.task_kind, corpus.label_names) == ("unlabelled", "unlabelled", ())
    assert "negatives" not in corpus.examples.column_names


def test_without_a_title_the_document_is_its_text(tmp_path: Path) -> None:
    corpus = retrieval(write(tmp_path), title=None).build()
    assert pairs(corpus)[0] == ("train", "what falls", "falls in winter")


@pytest.mark.parametrize("seed", range(4))
def test_a_dev_split_takes_whole_queries(tmp_path: Path, seed: int) -> None:
    queries = [{"query_id": i, "text": f"query {i // 2}"} for i in range(40)]
    judged = [
        {"query_id": i, "doc_id": d, "score": 1}
        for i in range(36)
        for d in ("a", "b", "c")[: 1 + i % 3]
    ]
    last = [{"query_id": i, "doc_id": "a", "score": 1} for i in range(36, 40)]
    folder = write(tmp_path, queries=queries, qrels_train=judged, qrels_test=last)
    dev = {"kind": "from_train_queries", "fraction": 0.25, "seed": seed}
    found = pairs(retrieval(folder, dev=dev).build())
    by_split = {s: {q for split, q, _ in found if split == s} for s in ("train", "dev", "test")}
    # 18 texts in train, each under two ids; round(0.25 * 18) is 4.
    assert {s: len(q) for s, q in by_split.items()} == {"train": 14, "dev": 4, "test": 2}
    assert not by_split["train"] & by_split["dev"]
    assert len(found) == len(judged) + len(last)
    other = pairs(retrieval(folder, dev={**dev, "seed": seed + 4}).build())
    assert {q for split, q, _ in other if split == "dev"} != by_split["dev"]


def test_pairs_of_files_can_be_split_by_query_too(tmp_path: Path) -> None:
    rows = [{"q": f"query {i % 5}", "d": f"document {i}"} for i in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    config = {
        "kind": "files",
        "files": {"train": str(tmp_path / "train.parquet")},
        "task": {"kind": "unlabelled", "text": "q", "text_pair": "d"},
        "dev": {"kind": "from_train_queries", "fraction": 0.4},
    }
    found = pairs(ADAPTER.validate_python(config).build())
    in_dev = {q for split, q, _ in found if split == "dev"}
    assert len(in_dev) == 2
    assert all((split == "dev") == (q in in_dev) for split, q, _ in found)


def test_the_key_holds_the_files_and_not_their_place(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        write(folder)
    facts = [retrieval(folder).facts() for folder in folders]
    assert facts[0] == facts[1]
    assert retrieval(folders[0], title=None).facts() != facts[0]
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES), ("qrels_test", TEST)):
        write(folders[1], **{name: rows[:-1]})
        assert retrieval(folders[1]).facts() != facts[0], name
        write(folders[1])


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"corpus": [*DOCUMENTS, DOCUMENTS[0]]}, "the id 'a' is in rows 1 and 5 of .*corpus"),
        ({"queries": [*QUERIES, QUERIES[1]]}, "the id '2' is in rows 2 and 5 of .*queries"),
        (
            {"corpus": DOCUMENTS[:2]},
            "row 4 of .*qrels_train.* judges the document 'c', which is not in",
        ),
        (
            {"queries": QUERIES[1:]},
            "row 1 of .*qrels_train.* judges the query '1', which is not in",
        ),
        (
            {"qrels_test": [*TEST, TEST[0]]},
            "row 3 of .* judges document 'c' for query '3' a second",
        ),
        ({"qrels_train": [TRAIN[2]]}, "none of the 1 judgements in .*qrels_train.* is above 0"),
        (
            {"qrels_train": [{"query_id": 1, "doc_id": "a", "score": 0.5}]},
            "row 1 of .* has the relevance 0.5; judgements are whole numbers",
        ),
        (
            {"qrels_test": [{"query_id": 3, "doc_id": "blank", "score": 1}]},
            "row 1 of .*qrels_test.* relevant for query '3', but the document 'blank' in .* is blank",
        ),
        (
            {"queries": [{"query_id": i, "text": " "} for i in (1, 2, 3, 4)]},
            "row 1 of .* but the query '1' in .*queries.parquet is blank",
        ),
        (
            {"queries": [{"query_id": 1, "text": 5}]},
            "column 'text' of .* holds int64, expected text",
        ),
        (
            {"queries": [{"query_id": 1, "words": "?"}]},
            "no column 'text' .*; its columns are 'query_id', 'words'",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, tables: dict[str, Rows], says: str) -> None:
    with pytest.raises(InputError, match=says):
        retrieval(write(tmp_path, **tables)).build()


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("corpus", "text", "row 2 of .*corpus.jsonl, column 'text', is not valid UTF-8"),
        ("corpus", "doc_id", "row 2 of .*corpus.jsonl, column 'doc_id', is not valid UTF-8"),
        ("queries", "text", "row 2 of .*queries.jsonl, column 'text', is not valid UTF-8"),
        (
            "qrels_train",
            "doc_id",
            "row 2 of .*qrels_train.jsonl, column 'doc_id', is not valid UTF-8",
        ),
    ],
)
def test_a_row_in_another_encoding_is_named(
    tmp_path: Path, name: str, column: str, says: str
) -> None:
    rows = pq.read_table(write(tmp_path) / f"{name}.parquet").to_pylist()
    rows[1][column] = "\u00e9t\u00e9"
    (tmp_path / f"{name}.parquet").unlink()
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / f"{name}.jsonl").write_text(lines, encoding="latin-1")
    with pytest.raises(InputError, match=says):
        retrieval(tmp_path).build()


def test_a_title_of_several_fields_is_refused(tmp_path: Path) -> None:
    titled = [row | {"title": {"short": row["title"]}} for row in DOCUMENTS]
    with pytest.raises(InputError, match=r"column 'title' of .* holds struct<.*expected text"):
        retrieval(write(tmp_path, corpus=titled)).build()


@pytest.mark.parametrize("name", ["corpus", "queries", "qrels_train"])
def test_files_that_are_empty_or_not_there_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path) / f"{name}.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(InputError, match=rf"{name}.parquet has no rows"):
        retrieval(tmp_path).build()
    path.unlink()
    with pytest.raises(InputError, match=rf"there is no file .*{name}.parquet"):
        retrieval(tmp_path).facts()
    with pytest.raises(InputError, match=rf"there is no file .*{name}.parquet"):
        retrieval(tmp_path).build()


def test_a_dev_split_that_would_part_a_query_or_stand_beside_another_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValidationError, match="from_train_queries"):
        retrieval(tmp_path, dev={"kind": "from_train", "fraction": 0.1})
    carved = {"kind": "from_train_queries", "fraction": 0.1}
    with pytest.raises(ValidationError, match="'from_train_queries' needs a split 'train'"):
        retrieval(tmp_path, qrels={"test": "qrels_test"}, dev=carved)
    with pytest.raises(InputError, match="of 2 distinct training texts is 0"):
        retrieval(write(tmp_path), dev=carved).build()


CANDIDATES = [
    {"query_id": 7, "query": "what falls", "document": "snow falls", "label": 1},
    {"query_id": 7, "query": "what falls", "document": "fish swim", "label": 0},
    {"query_id": 8, "query": "what is hard", "document": "lakes are wet", "label": 0},
    {"query_id": 7, "query": "what falls", "document": "rain falls", "label": 1},
    {"query_id": 7, "query": "what falls", "document": "fish swim", "label": 0},
    {"query_id": 9, "query": "who swims", "document": "fish do", "label": 1},
]


def reranking(folder: Path, rows: Rows | None = None, **fields: Any) -> CorpusConfig:
    path = folder / "train.parquet"
    pq.write_table(pa.Table.from_pylist(CANDIDATES if rows is None else rows), path)
    return ADAPTER.validate_python({"kind": "reranking", "files": {"train": str(path)}, **fields})


def test_every_answer_is_a_pair_and_the_other_candidates_are_its_negatives(tmp_path: Path) -> None:
    expected = [
        ("train", "what falls", "snow falls"),
        ("train", "what falls", "rain falls"),
        ("train", "who swims", "fish do"),
    ]
    plain = reranking(tmp_path).build()
    assert pairs(plain) == expected
    assert "negatives" not in plain.examples.column_names
    assert "fish swim" not in plain.texts
    hard = reranking(tmp_path, negatives="candidates").build()
    assert pairs(hard) == expected
    found = hard.examples.column("negatives").to_pylist()
    assert [[hard.texts[i] for i in row] for row in found] == [["fish swim"], ["fish swim"], []]
    keys = [reranking(tmp_path, negatives=n).facts() for n in ("none", "candidates")]
    assert keys[0] != keys[1]


def test_documents_are_stripped_as_mteb_does(tmp_path: Path) -> None:
    rows = [{**row, "document": f" {row['document']}\n"} for row in CANDIDATES]
    hard = reranking(tmp_path, rows, negatives="candidates").build()
    assert hard.texts == reranking(tmp_path, negatives="candidates").build().texts


def test_candidates_can_be_read_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("qid,question,sentence,y\n1,who,fish,1\n1,who,ice,0\n")
    names = {"query_id": "qid", "query": "question", "document": "sentence", "label": "y"}
    given = {"kind": "reranking", "files": {"train": str(path)}, "negatives": "candidates", **names}
    corpus = ADAPTER.validate_python(given).build()
    assert pairs(corpus) == [("train", "who", "fish")]
    assert corpus.texts == ("who", "fish", "ice")


def put(row: int, **change: Any) -> Callable[[Rows], Rows]:
    return lambda rows: [{**r, **change} if i == row else r for i, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (put(3, query="other"), "row 4 of .* under the id '7', which row 1 gives to 'what falls'"),
        (put(4, label=1), "rows 2 and 5 of .* label the same document of query '7' 0 and 1"),
        (put(0, label=2), "holds 2 in row 1; labels of this kind of task are 0 and 1"),
        (put(1, document=" "), r"row 2 of .* has the blank text ' ' in column 'document'"),
        (put(1, query=None), r"row 2 of .* has no text in column 'query'"),
        (lambda rows: rows[1:3], "none of the 2 rows of .* has the label 1, so no query"),
        (
            lambda rows: [{k: v for k, v in r.items() if k != "label"} for r in rows],
            "no column 'label'",
        ),
    ],
)
def test_wrong_candidates_are_refused(
    tmp_path: Path, damage: Callable[[Rows], Rows], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        reranking(tmp_path, damage(CANDIDATES), negatives="candidates").build()


def test_negatives_that_are_not_there_are_refused(tmp_path: Path) -> None:
    answers = [row for row in CANDIDATES if row["label"]]
    with pytest.raises(InputError, match="holds no text in any row of any split"):
        reranking(tmp_path, answers, negatives="candidates").build()


@needs_data
def test_published_counts_of_scifact() -> None:
    dev = {"kind": "from_train_queries", "fraction": 0.1}
    folder = DATA / "scifact"
    corpus = retrieval(folder, dev=dev).build()
    found = pairs(corpus)
    # 919 judgements of 809 train queries, of which two share a text with another; 339 of 300 test queries.
    assert Counter("test" if split == "test" else "train" for split, _, _ in found) == {
        "train": 919,
        "test": 339,
    }
    queries = {s: {q for split, q, _ in found if split == s} for s in ("train", "dev", "test")}
    assert len(queries["train"]) + len(queries["dev"]) == 807
    assert not queries["train"] & queries["dev"]
    assert len(queries["test"]) == 300


@needs_data
def test_published_counts_of_wikiqa() -> None:
    folder = DATA / "wikiqa"
    given = {
        "kind": "reranking",
        "files": {s: str(folder / f"{s}.parquet") for s in ("train", "dev", "test")},
        "query_id": "qid",
        "query": "question",
        "document": "sentence",
        "negatives": "candidates",
    }
    corpus = ADAPTER.validate_python(given).build()
    n_pairs = Counter(split for split, _, _ in pairs(corpus))
    assert n_pairs == {"train": 1040, "dev": 140, "test": 293}
    without = [r for r in corpus.examples.to_pylist() if not r["negatives"]]
    questions = {(r["split"], r["text"]) for r in without}
    # Questions of which every candidate is an answer.
    assert Counter(split for split, _ in questions) == {"train": 16, "dev": 4, "test": 6}
