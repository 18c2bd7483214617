"""Local evaluation data: what is read, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from permafrost.stages.mteb_evaluation import task_facts
from permafrost.storage.errors import InputError
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_rows, write_task

Rows = list[dict[str, Any]]


@pytest.mark.parametrize(
    ("kind", "n"),
    list(zip(KINDS, (24, 24, 24, 45, 7, 6, 4), strict=True)),
)
def test_every_kind_is_read(tmp_path: Path, kind: str, n: int) -> None:
    write_task(tmp_path, kind)
    assert task(tmp_path, kind).read().n_examples == n


def test_queries_without_a_judgement_are_left_out(tmp_path: Path) -> None:
    write_task(tmp_path, "retrieval")
    data = task(tmp_path, "retrieval").read()
    assert data.tables["queries"]["id"] == [f"q{i}" for i in range(7)]
    assert data.relevant["q0"] == {"d0": 2}
    assert data.relevant["q1"] == {"d1": 2, "d11": 1}
    assert data.candidates is None
    write_task(tmp_path, "reranking")
    ranked = task(tmp_path, "reranking").read()
    assert ranked.tables["queries"]["id"] == list("012345")
    assert ranked.relevant["3"] == {"3/3": 1}
    assert ranked.relevant["5"] == {f"5/{i}": 0 for i in range(5)}
    assert ranked.candidates is not None
    assert ranked.candidates["3"] == [f"3/{i}" for i in range(5)]


def test_columns_and_files_can_have_other_names(tmp_path: Path) -> None:
    rows = [{"t": "snow", "c": "cold"}, {"t": "sun", "c": "warm"}]
    write_rows(tmp_path / "clustering" / "all.parquet", rows)
    found = task(tmp_path, "clustering", split="all", text="t", label="c").read().tables
    assert found == {"test": {"sentences": ["snow", "sun"], "labels": ["cold", "warm"]}}


def test_queries_may_name_their_document_without_a_judgement(tmp_path: Path) -> None:
    """As QMSum, whose every question is of one meeting."""
    folder = tmp_path / "retrieval"
    write_rows(folder / "meetings.parquet", [{"meeting": m, "text": f"in {m}"} for m in "ab"])
    asked = [{"query_id": str(i), "meeting": "ab"[i % 2], "answer": f"so {i}"} for i in range(5)]
    write_rows(folder / "asked.parquet", asked)
    files = {"corpus": "meetings", "queries": "asked", "qrels": "asked"}
    columns = {"document_id": "meeting", "query": "answer", "relevance": None}
    data = task(tmp_path, "retrieval", **files, **columns).read()
    assert data.relevant == {str(i): {"ab"[i % 2]: 1} for i in range(5)}
    assert data.tables["queries"]["text"] == [f"so {i}" for i in range(5)]


def test_the_key_holds_the_files_and_not_their_place(tmp_path: Path) -> None:
    first, second = (write_task(tmp_path / name, "sts") for name in ("a", "b"))
    keys = [task_facts(task(folder.parent, "sts")).key for folder in (first, second)]
    assert keys[0] == keys[1]
    assert "mteb" in keys[0]
    table = pq.read_table(first / "test.parquet")
    pq.write_table(table.slice(1), first / "test.parquet")
    assert task_facts(task(tmp_path / "a", "sts")).key != keys[0]
    other = task_facts(task(tmp_path / "b", "sts", main_score="cosine_pearson")).key
    assert other != keys[1]


def put(name: str, **change: Any) -> Callable[[Path], None]:
    """Give the first row of a file other values."""

    def apply(folder: Path) -> None:
        rows = pq.read_table(folder / f"{name}.parquet").to_pylist()
        write_rows(folder / f"{name}.parquet", [{**rows[0], **change}, *rows[1:]])

    return apply


def every(name: str, **change: Any) -> Callable[[Path], None]:
    """Give all rows of a file other values."""

    def apply(folder: Path) -> None:
        rows = pq.read_table(folder / f"{name}.parquet").to_pylist()
        write_rows(folder / f"{name}.parquet", [{**row, **change} for row in rows])

    return apply


def again(name: str) -> Callable[[Path], None]:
    """Repeat the first row of a file at its end."""

    def apply(folder: Path) -> None:
        rows = pq.read_table(folder / f"{name}.parquet").to_pylist()
        write_rows(folder / f"{name}.parquet", [*rows, rows[0]])

    return apply


def drop(name: str) -> Callable[[Path], None]:
    """Remove a file."""
    return lambda folder: (folder / f"{name}.parquet").unlink()


def empty(name: str) -> Callable[[Path], None]:
    """Keep the columns of a file only."""

    def apply(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        pq.write_table(pq.read_table(path).slice(0, 0), path)

    return apply


def column(name: str, field: str, values: Any) -> Callable[[Path], None]:
    """Replace a column."""

    def apply(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        table = pq.read_table(path)
        at = table.column_names.index(field)
        pq.write_table(table.set_column(at, field, pa.array([values] * table.num_rows)), path)

    return apply


@pytest.mark.parametrize(
    ("kind", "damage", "says"),
    [
        (
            "retrieval",
            drop("qrels_test"),
            r"no file .*qrels_test.parquet .*; the folder holds corpus.parquet, .*'qrels: NAME'",
        ),
        ("retrieval", drop("corpus"), "no file .*corpus.parquet .*Write 'corpus: NAME'"),
        ("retrieval", empty("corpus"), "corpus.parquet has no rows"),
        ("retrieval", empty("queries"), "queries.parquet has no rows"),
        ("retrieval", empty("qrels_test"), "qrels_test.parquet has no rows"),
        (
            "retrieval",
            again("corpus"),
            r"the id 'd0' is in rows 1 and 31 of .*\(column 'doc_id'",
        ),
        ("retrieval", again("queries"), "the id 'q0' is in rows 1 and 10"),
        (
            "retrieval",
            again("qrels_test"),
            "row 15 of .* judges document 'd0' for query 'q0' a second",
        ),
        (
            "retrieval",
            put("qrels_test", query_id="x"),
            "row 1 of .* judges the query 'x', which is not",
        ),
        (
            "retrieval",
            put("qrels_test", doc_id="x"),
            "row 1 of .* judges the document 'x', which is",
        ),
        ("retrieval", every("qrels_test", score=0), "none of the 14 judgements in .* is above 0"),
        (
            "retrieval",
            column("qrels_test", "score", 0.5),
            "row 1 .* relevance 0.5; judgements are whole",
        ),
        (
            "retrieval",
            column("corpus", "text", 3),
            "column 'text' of .* holds int64, expected text",
        ),
        (
            "sts",
            put("test", score=float("nan")),
            "row 1 of .* has nan in column 'score', expected a",
        ),
        (
            "sts",
            put("test", score=None),
            r"row 1 of .* nothing in column 'score' \(1 such of 24 rows\)",
        ),
        ("sts", every("test", score=1.0), "all 24 pairs of .* have the grade 1"),
        ("pair_classification", put("test", label=2), "holds 2 in row 1; labels of this kind"),
        ("pair_classification", every("test", label=1), "all 24 pairs .* have the label 1"),
        ("classification", put("test", label=9), r"has the class '9' \(1 such\), which no row"),
        ("classification", every("train", label=0), "has the class '1'"),
        (
            "classification",
            column("train", "label", 0.5),
            "row 1 of .* has 0.5 .* classes are whole",
        ),
        (
            "clustering",
            column("test", "label", " "),
            "row 1 of .* has the blank class ' ' in column 'label'; fill it",
        ),
        ("clustering", every("test", label=0), "all 45 rows of .* have the same class"),
        (
            "reranking",
            put("test", query="other"),
            "row 2 .* under the id '0', which row 1 gives to",
        ),
        ("reranking", every("test", label=0), "none of the 30 rows of .* has the label 1"),
        (
            "summarization",
            put("summaries", doc_id="x"),
            "row 1 of .* is a summary of 'x', which is not",
        ),
        (
            "summarization",
            every("summaries", relevance=1.0),
            "no document of .* has summaries of diff",
        ),
        (
            "summarization",
            put("docs", references=[]),
            r"row 1 of .* has \[\] in column 'references'",
        ),
        ("summarization", again("docs"), "the id 't0' is in rows 1 and 5"),
    ],
)
def test_wrong_data_is_refused(
    tmp_path: Path, kind: str, damage: Callable[[Path], None], says: str
) -> None:
    damage(write_task(tmp_path, kind))
    with pytest.raises(InputError, match=says):
        task(tmp_path, kind).read()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "test") for kind in ("sts", "pair_classification", "clustering", "reranking")),
        *(("classification", name) for name in ("train", "test")),
        *(("summarization", name) for name in ("docs", "summaries")),
        *(("retrieval", name) for name in ("corpus", "queries", "qrels_test")),
    ],
)
def test_an_empty_task_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    empty(name)(write_task(tmp_path, kind))
    with pytest.raises(InputError, match=f"{name}.parquet has no rows.* give"):
        task(tmp_path, kind).read()


def test_average_precision_is_refused_where_test_has_not_two_classes(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification")
    asked = task(tmp_path, "classification", main_score="ap")
    with pytest.raises(
        InputError, match=r"is 'ap', .* two classes alone, .* has 3; take one of acc"
    ):
        asked.read()
    rows = pq.read_table(folder / "test.parquet")
    pq.write_table(rows.filter(pc.less(rows["label"], 2)), folder / "test.parquet")
    assert set(asked.read().tables["test"]["label"]) == {0, 1}


def test_class_names_that_csv_reads_as_missing_are_told_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "clustering"
    folder.mkdir()
    (folder / "test.csv").write_text("text,label\na,1\nb,NA\n")
    with pytest.raises(InputError, match=r"row 2 .* nothing in .*; in csv NA, null and nan count"):
        task(tmp_path, "clustering").read()


def test_training_texts_of_one_class_cannot_be_told_apart(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification")
    for name in ("train", "test"):
        every(name, label=0)(folder)
    with pytest.raises(InputError, match="have the same class, so there is nothing to learn"):
        task(tmp_path, "classification").read()


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_task(tmp_path, "sts")
    with pytest.raises(InputError, match="no column 'grade'; its columns are 'sentence1'"):
        task(tmp_path, "sts", label="grade").read()


@pytest.mark.parametrize("kind", ["classification", "clustering"])
def test_classes_that_differ_in_spaces_alone_are_refused(tmp_path: Path, kind: str) -> None:
    rows = [{"text": f"a {i}", "label": label} for i, label in enumerate(["x", "y", "x ", "y"])]
    for name in ("train", "test"):
        write_rows(tmp_path / kind / f"{name}.parquet", rows)
    with pytest.raises(InputError, match=r"the classes 'x' and 'x ', which differ in spaces alone"):
        task(tmp_path, kind).read()


def test_only_blank_texts_make_no_corpus(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "retrieval")
    every("corpus", text=" ", title="")(folder)
    with pytest.raises(InputError, match="in the role document are blank"):
        task(tmp_path, "retrieval").texts_in("document")
