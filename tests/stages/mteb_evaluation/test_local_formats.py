"""Local data in the formats and with the names that its users have: every kind reads all of them alike."""

import csv
import io
import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.mteb_evaluation import LOCAL_TASKS, task_facts
from permafrost.storage.errors import InputError
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_task

CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
Rows = list[dict[str, Any]]

OTHER_NAMES: dict[str, dict[str, str]] = {
    "sts": {"sentence1": "text1", "sentence2": "text2", "score": "similarity"},
    "classification": {"text": "Sentence", "label": "Class"},
    "pair_classification": {"sentence1": "premise", "sentence2": "hypothesis", "label": "labels"},
    "clustering": {"text": "sentences", "label": "labels"},
    "retrieval": {"query_id": "query-id", "doc_id": "corpus-id", "text": "text"},
    "reranking": {"query_id": "qid", "query": "question", "document": "passage"},
    "summarization": {
        "doc_id": "id",
        "references": "human_summaries",
        "summary": "machine_summary",
    },
}


def text_of(rows: Rows, extension: str) -> str:
    """The rows as a file of this format."""
    if extension == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    cells = [
        {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows
    ]
    out = io.StringIO()
    if extension == ".tsv":
        lines = [list(cells[0]), *(list(row.values()) for row in cells)]
        return "".join("\t".join(map(str, line)) + "\n" for line in lines)
    writer = csv.DictWriter(out, list(cells[0]))
    writer.writeheader()
    writer.writerows(cells)
    return out.getvalue()


def converted(folder: Path, kind: str, extension: str, **names: str) -> Path:
    """The files of a task in another format, with other names for columns."""
    for path in write_task(folder, kind).glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        renamed: Rows = [{names.get(k, k): v for k, v in row.items()} for row in rows]
        path.with_suffix(extension).write_text(text_of(renamed, extension))
        path.unlink()
    return folder / kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extension", [".jsonl", ".csv", ".tsv"])
def test_every_kind_reads_every_format(tmp_path: Path, kind: str, extension: str) -> None:
    write_task(tmp_path / "parquet", kind)
    converted(tmp_path / "other", kind, extension)
    wanted = task(tmp_path / "parquet", kind).read()
    found = task(tmp_path / "other", kind).read()
    assert found == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_knows_the_usual_names(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "parquet", kind)
    converted(tmp_path / "other", kind, ".jsonl", **OTHER_NAMES[kind])
    assert task(tmp_path / "other", kind).read() == task(tmp_path / "parquet", kind).read()


def test_the_key_tells_formats_apart(tmp_path: Path) -> None:
    folder = converted(tmp_path, "sts", ".csv")
    first = task_facts(task(tmp_path, "sts")).key
    (folder / "test.csv").rename(folder / "test.tsv")
    assert task_facts(task(tmp_path, "sts")).key != first


DOCUMENTS = [
    {"_id": "d1", "title": "Snow", "text": "falls", "metadata": {}},
    {"_id": "d2", "title": "", "text": "ice is hard", "metadata": {}},
    {"_id": "7", "text": "fish live in lakes", "metadata": {"url": "u"}},
]
QUERIES = [{"_id": str(i), "text": f"question {i}", "metadata": {}} for i in range(5)]
JUDGED = {
    "train": [("0", "d1", 1), ("1", "d2", 2), ("1", "d1", 0)],
    "dev": [("2", "7", 1)],
    "test": [("3", "7", 1), ("4", "d1", 1), ("4", "d2", 1)],
}


def beir(folder: Path, splits: tuple[str, ...] = ("train", "dev", "test")) -> Path:
    """A collection as BEIR's archives hold it."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(text_of(DOCUMENTS, ".jsonl"))
    (folder / "queries.jsonl").write_text(text_of(QUERIES, ".jsonl"))
    for split in splits:
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, r)) for r in JUDGED[split])]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def retrieval(folder: Path, **fields: Any) -> Corpus:
    return CORPUS.validate_python({"kind": "retrieval", "path": str(folder), **fields}).build()


def pairs(corpus: Corpus) -> list[tuple[str, str, str]]:
    return [
        (r["split"], corpus.texts[r["text"]], corpus.texts[r["text_pair"]])
        for r in corpus.examples.to_pylist()
    ]


def test_a_beir_folder_is_a_task_as_it_is(tmp_path: Path) -> None:
    beir(tmp_path / "retrieval")
    data = task(tmp_path, "retrieval").read()
    assert data.tables["queries"] == {"id": ["3", "4"], "text": ["question 3", "question 4"]}
    assert data.tables["corpus"]["id"] == ["d1", "d2", "7"]
    assert data.tables["corpus"]["title"] == ["Snow", "", ""]
    assert data.relevant == {"3": {"7": 1}, "4": {"d1": 1, "d2": 1}}
    assert set(task(tmp_path, "retrieval").texts_in("document").texts) == {
        "Snow falls",
        "ice is hard",
        "fish live in lakes",
    }


def test_a_beir_folder_is_a_corpus_with_its_own_splits(tmp_path: Path) -> None:
    assert pairs(retrieval(beir(tmp_path))) == [
        ("train", "question 0", "Snow falls"),
        ("train", "question 1", "ice is hard"),
        ("dev", "question 2", "fish live in lakes"),
        ("test", "question 3", "fish live in lakes"),
        ("test", "question 4", "Snow falls"),
        ("test", "question 4", "ice is hard"),
    ]


def test_a_folder_with_dev_needs_no_dev_from_train(tmp_path: Path) -> None:
    held = {"kind": "from_train_queries", "fraction": 0.5}
    with pytest.raises(InputError, match=r"judgements of train, dev, test: dev of kind .*'qrels'"):
        retrieval(beir(tmp_path / "a"), dev=held)
    corpus = retrieval(beir(tmp_path / "b", ("train", "test")), dev=held)
    assert corpus.splits == ("train", "dev", "test") or set(corpus.splits) == {
        "train",
        "dev",
        "test",
    }


QRELS = {
    "no header": ("qrels/test.tsv", "3\td1\t1\n4\t7\t2\n"),
    "no header, csv": ("qrels_test.csv", "3,d1,1\n4,7,2\n"),
    "trec": ("qrels/test.txt", "3 0  d1 1\n4 0  7 2\n"),
    "trec, tabs": ("qrels.tsv", "3\t0\td1\t1\n4\tQ0\t7\t2\n"),
    "another order": ("qrels/test.tsv", "score\tcorpus-id\tquery-id\n1\td1\t3\n2\t7\t4\n"),
    "carriage returns": ("qrels/test.tsv", "query-id\tcorpus-id\tscore\r\n3\td1\t1\r\n4\t7\t2\r\n"),
    "numbers": (
        "qrels_test.jsonl",
        '{"query-id": 3, "corpus-id": "d1", "score": 1}\n{"query-id": 4, "corpus-id": "7", "score": 2}\n',
    ),
}


@pytest.mark.parametrize("case", QRELS)
def test_judgements_are_read_with_a_header_or_without(tmp_path: Path, case: str) -> None:
    name, content = QRELS[case]
    beir(tmp_path / "retrieval", ())
    (tmp_path / "retrieval" / name).write_text(content)
    assert task(tmp_path, "retrieval").read().relevant == {"3": {"d1": 1}, "4": {"7": 2}}


def test_columns_of_judgements_can_be_named(tmp_path: Path) -> None:
    folder = beir(tmp_path / "retrieval", ())
    (folder / "qrels" / "test.csv").write_text("ask,found,points\n3,d1,1\n")
    names = {"qrels_query_id": "ask", "qrels_document_id": "found", "relevance": "points"}
    assert task(tmp_path, "retrieval", **names).read().relevant == {"3": {"d1": 1}}
    with pytest.raises(InputError, match=r"begins with 'ask', 'found', 'points': neither .*names"):
        task(tmp_path, "retrieval").read()


WRONG = {
    "cells missing": ("3\td1\t1\n4\t7\n", "line 2 of .*test.tsv has 2 cells and the first one 3"),
    "cells missing below a blank line": (
        "3\td1\t1\n\n4\t7\n",
        "line 3 of .*test.tsv has 2 cells and the first one 3",
    ),
    "no grade": ("query-id\tcorpus-id\tscore\n3\td1\thigh\n", "row 1 .* the relevance 'high'"),
    "grade too large": (
        "3\td1\t1\n4\t7\t-3000000000\n",
        "row 2 .* relevance -3e[+]09, .* above 10,000",
    ),
    "four columns": ("3\tmine\td1\t1\n", "not TREC's, as its second column has 'mine'"),
    "header only": ("query-id\tcorpus-id\tscore\n", "has no rows"),
    "unknown document": ("3\tnone\t1\n", "judges the document 'none', which is not in"),
    "two names": (
        "query-id\tqid\tcorpus-id\tscore\n3\t3\td1\t1\n",
        "2 columns that could be meant by 'qrels_query_id': 'query-id', 'qid'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_judgements_are_refused(tmp_path: Path, case: str) -> None:
    content, says = WRONG[case]
    beir(tmp_path / "retrieval", ())
    (tmp_path / "retrieval" / "qrels" / "test.tsv").write_text(content)
    with pytest.raises(InputError, match=says):
        task(tmp_path, "retrieval").read()


def test_two_files_of_one_name_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    folder = converted(tmp_path, "sts", ".csv")
    write_task(tmp_path, "sts")
    with pytest.raises(
        InputError, match=r"several files for split: test.parquet, test.csv; write one"
    ):
        task(tmp_path, "sts").read()
    assert task(tmp_path, "sts", split="test.csv").read().n_examples == 24
    (folder / "data").mkdir()
    (folder / "test.csv").unlink()
    (folder / "test.parquet").rename(folder / "data" / "test-00000-of-00001.parquet")
    assert task(tmp_path, "sts").read().n_examples == 24


def test_columns_that_could_mean_the_same_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    files = {"kind": "files", "files": {"train": str(path)}}

    def read(row: dict[str, Any], **columns: str) -> Corpus:
        rows = [{**row, "label": i} for i in (0, 1)]
        path.write_text(text_of(rows, ".jsonl"))
        return CORPUS.validate_python({**files, "task": columns}).build()

    assert read({"content": "ice"}, kind="classification").texts == ("ice",)
    with pytest.raises(
        InputError, match=r"2 columns that could be meant by 'text': 'sentence', 'content'"
    ):
        read({"sentence": "ice", "content": "snow"}, kind="classification")
    named = read({"sentence": "ice", "content": "snow"}, kind="classification", text="content")
    assert named.texts == ("snow",)
    with pytest.raises(
        InputError, match=r"no column 'content'; its columns are 'sentence', 'label'"
    ):
        read({"sentence": "ice"}, kind="classification", text="content")
    both = {"premise": "a", "hypothesis": "b"}
    assert read(both, kind="pair_classification").texts == ("a", "b")
    more = {**both, "sentence1": "c", "sentence2": "d"}
    with pytest.raises(
        InputError, match="2 pairs of columns that could be meant: 'sentence1', 'sentence2'"
    ):
        read(more, kind="pair_classification")
    # A text and half of a pair that does not belong to it.
    with pytest.raises(InputError, match="no column 'text_pair'"):
        read({"text": "a", "sentence2": "b"}, kind="pair_classification")


def test_a_tsv_keeps_its_quotation_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('sentence\tlabel\n"ice\t0\nsay "snow"\t1\n')
    config = {"kind": "files", "files": {"train": str(path)}, "task": {"kind": "classification"}}
    assert CORPUS.validate_python(config).build().texts == ('"ice', 'say "snow"')
    assert CORPUS.validate_python(config).facts()["files"]["train"]["format"] == "tsv"


@pytest.mark.parametrize("extension", [".jsonl", ".csv"])
def test_candidates_without_query_ids_belong_to_equal_queries(
    tmp_path: Path, extension: str
) -> None:
    rows = [{"id": i, "query": f"q{i // 2}", "document": f"d{i}", "label": i % 2} for i in range(6)]
    path = tmp_path / "reranking" / f"test{extension}"
    path.parent.mkdir()
    path.write_text(text_of(rows, extension))
    found = task(tmp_path, "reranking").read()
    assert found.candidates == {q: [f"{q}/0", f"{q}/1"] for q in ("q0", "q1", "q2")}
    config = {"kind": "reranking", "files": {"test": str(path)}, "negatives": "candidates"}
    corpus = CORPUS.validate_python(config).build()
    assert pairs(corpus) == [("test", "q0", "d1"), ("test", "q1", "d3"), ("test", "q2", "d5")]


@pytest.mark.parametrize("name", ["x" * 300, "nul\0"])
def test_a_name_that_no_file_can_have_is_that_of_no_file(tmp_path: Path, name: str) -> None:
    write_task(tmp_path, "sts")
    with pytest.raises(InputError, match="there is no file"):
        task(tmp_path, "sts", split=name).read()


@pytest.mark.parametrize(
    "names",
    [("text", "text_pair", "label"), ("sentence1", "sentence2", "score"), ("text_a", "text_b", "score")],
    ids="-".join,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["similarity", "sts"])
def test_graded_pairs_have_one_vocabulary_in_tasks_and_in_evaluations(
    tmp_path: Path, names: tuple[str, str, str], kind: str
) -> None:
    rows = [("ice", "snow", 3.0), ("lake", "river", 1.0)]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    pq.write_table(pa.table(columns), tmp_path / "test.parquet")
    evaluated = LOCAL_TASKS.validate({"kind": "local", "type": kind, "path": str(tmp_path)})
    assert evaluated.read().tables["test"] == {
        "sentence1": ["ice", "lake"], "sentence2": ["snow", "river"], "score": [3.0, 1.0],
    }  # fmt: skip
    files = {"train": str(tmp_path / "test.parquet")}
    test = {"kind": "from_train", "fraction": 0.5}
    source = CORPUS.validate_python(
        {
            "kind": "files",
            "files": files | {"dev": files["train"]},
            "task": {"kind": kind},
            "test": test,
        }
    )
    assert source.task_kind == "similarity"
    (_, read) = source.rows()  # type: ignore[attr-defined]
    assert read.text_pair.to_pylist() == ["snow", "river"]
    assert read.label.to_pylist() == [3.0, 1.0]


def test_a_file_with_two_sets_of_names_is_read_as_ever(tmp_path: Path) -> None:
    columns = {"text": ["a", "b"], "text_pair": ["c", "d"], "label": [0, 1]}
    of_mteb = {"sentence1": ["e", "f"], "sentence2": ["g", "h"], "score": [2.0, 3.0]}
    pq.write_table(pa.table(columns | of_mteb), tmp_path / "test.parquet")

    def read(**fields: str) -> Any:
        given = {"kind": "local", "type": "sts", "path": str(tmp_path), **fields}
        return LOCAL_TASKS.validate(given).read().tables["test"]

    assert read() == of_mteb
    named = read(text="text", text_pair="text_pair", label="label")
    assert list(named.values()) == [["a", "b"], ["c", "d"], [0.0, 1.0]]


def accented(value: Any) -> Any:
    if isinstance(value, list):
        return [accented(v) for v in cast(list[Any], value)]
    return f"\u00e9 {value}" if isinstance(value, str) else value


@pytest.mark.parametrize("kind", KINDS)
def test_texts_in_another_encoding_are_refused(tmp_path: Path, kind: str) -> None:
    for path in sorted(converted(tmp_path, kind, ".jsonl").iterdir()):
        before = path.read_text()
        rows = [json.loads(line) for line in before.splitlines()]
        rows[1] = {name: accented(value) for name, value in rows[1].items()}
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="latin-1")
        with pytest.raises(
            InputError, match=r"not valid UTF-8.*save it as UTF-8, or in kind 'files'"
        ):
            task(tmp_path, kind).read()
        path.write_text(before)


def test_classes_that_are_names_in_one_file_are_names_in_the_other(tmp_path: Path) -> None:
    # Arrow reads a column of `1` and `2` as numbers, and one of `1`, `2` and `none` as text.
    folder = tmp_path / "classification"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\na,1\nb,2\nc,none\nd,1\n")
    (folder / "test.csv").write_text("text,label\ne,2\nf,1\n")

    data = task(tmp_path, "classification").read()

    assert data.tables["train"]["label"] == [0, 1, 2, 0]
    assert data.tables["test"]["label"] == [1, 0]
    assert data.class_names == ("1", "2", "none")
