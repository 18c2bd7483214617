"""Rows that hold lists, as mteb's older datasets have them, and data in shards."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from permafrost.stages.corpus.source import CorpusConfig
from permafrost.storage.errors import InputError
from tests.stages.mteb_evaluation.small_tasks import task, write_task
from tests.stages.mteb_evaluation.test_local_formats import beir, pairs, text_of

CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
EXTENSIONS = [".parquet", ".jsonl", ".csv", ".tsv"]
Rows = list[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    """The rows in the format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(text_of(rows, path.suffix))
    return path


def rows_of(folder: Path, kind: str, name: str = "test") -> Rows:
    """What a small task holds in single rows."""
    return pq.read_table(write_task(folder, kind) / f"{name}.parquet").to_pylist()


def grouped(rows: Rows, size: int, **names: str) -> Rows:
    """The columns as lists of `size` rows each, under other names."""
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [{names.get(k, k): [row[k] for row in part] for k in part[0]} for part in parts]


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_clusters_in_lists(tmp_path: Path, extension: str) -> None:
    rows = rows_of(tmp_path / "flat", "clustering")
    nested = grouped(rows, 20, text="sentences", label="labels")
    write(tmp_path / "nested" / "clustering" / f"test{extension}", nested)
    found = task(tmp_path / "nested", "clustering").read()
    assert found == task(tmp_path / "flat", "clustering").read()
    assert found.n_examples == 45


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_pairs_in_lists(tmp_path: Path, extension: str) -> None:
    rows = rows_of(tmp_path / "flat", "pair_classification")
    nested = grouped(rows, 24, sentence1="sent1", sentence2="sent2", label="labels")
    write(tmp_path / "nested" / "pair_classification" / f"test{extension}", nested)
    found = task(tmp_path / "nested", "pair_classification").read()
    assert found == task(tmp_path / "flat", "pair_classification").read()


RERANKING: Rows = [
    {"query": "snow", "positive": ["ice", "frost"], "negative": ["sand"]},
    {"query": "river", "positive": ["lake"], "negative": ["[1] road", "hill", "wall"]},
    {"query": "nothing", "positive": [], "negative": ["sand"]},
    {"query": "snow", "positive": ["sleet"], "negative": []},
]


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_candidates_in_lists(tmp_path: Path, extension: str) -> None:
    path = write(tmp_path / "reranking" / f"test{extension}", RERANKING)
    found = task(tmp_path, "reranking").read()
    assert found.tables["queries"] == {"id": ["0", "1"], "text": ["snow", "river"]}
    texts = dict(zip(found.tables["corpus"]["id"], found.tables["corpus"]["text"], strict=True))
    assert found.candidates is not None
    assert {q: [texts[d] for d in ds] for q, ds in found.candidates.items()} == {
        "0": ["ice", "frost", "sand"],
        "1": ["lake", "[1] road", "hill", "wall"],
    }
    assert {q: [texts[d] for d in ds] for q, ds in found.relevant.items()} == {
        "0": ["ice", "frost"],
        "1": ["lake"],
    }
    config = {"kind": "reranking", "files": {"train": str(path)}, "negatives": "candidates"}
    corpus = CORPUS.validate_python(config).build()
    assert [pair[1:] for pair in pairs(corpus)] == [
        ("snow", "ice"), ("snow", "frost"), ("river", "lake"), ("snow", "sleet"),
    ]  # fmt: skip
    lists = corpus.examples.column("negatives").to_pylist()
    assert [[corpus.texts[n] for n in row] for row in lists] == [
        ["sand"], ["sand"], ["[1] road", "hill", "wall"], [],
    ]  # fmt: skip


@pytest.mark.parametrize("extension", [".jsonl", ".csv"])
def test_a_single_candidate_is_a_list_of_one(tmp_path: Path, extension: str) -> None:
    rows = [
        {"id": f"q{i}", "query": f"q{i}", "positive": f"p{i}", "negative": f"n{i}"}
        for i in range(2)
    ]
    write(tmp_path / "reranking" / f"test{extension}", rows)
    found = task(tmp_path, "reranking").read()
    assert found.candidates == {"q0": ["q0/0", "q0/1"], "q1": ["q1/0", "q1/1"]}
    assert found.tables["corpus"]["text"] == ["p0", "n0", "p1", "n1"]


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("name", ["docs", "test"])
def test_summaries_in_lists(tmp_path: Path, extension: str, name: str) -> None:
    documents = rows_of(tmp_path / "flat", "summarization", "docs")
    summaries = rows_of(tmp_path / "flat", "summarization", "summaries")
    nested: Rows = [
        {
            "id": d["doc_id"],
            "text": "an article",
            "human_summaries": d["references"],
            "machine_summaries": [s["summary"] for s in summaries if s["doc_id"] == d["doc_id"]],
            "relevance": [s["relevance"] for s in summaries if s["doc_id"] == d["doc_id"]],
        }
        for d in documents
    ]
    write(tmp_path / "nested" / "summarization" / f"{name}{extension}", nested)
    config = task(tmp_path / "nested", "summarization")
    assert config.read() == task(tmp_path / "flat", "summarization").read()
    assert len(set(config.digests().values())) == 1


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("graded", [True, False])
def test_judgements_in_lists(tmp_path: Path, extension: str, graded: bool) -> None:
    folder = beir(tmp_path / "retrieval", ())
    rows: Rows = [
        {"query-id": "3", "corpus-ids": ["d1", "7"], "score": [2, 0]},
        {"query-id": "4", "corpus-ids": ["d2"], "score": [1]},
    ]
    if not graded:
        rows = [{k: v for k, v in row.items() if k != "score"} for row in rows]
    write(folder / f"qrels_test{extension}", rows)
    relevant = (
        {"3": {"d1": 2}, "4": {"d2": 1}} if graded else {"3": {"d1": 1, "7": 1}, "4": {"d2": 1}}
    )
    assert task(tmp_path, "retrieval").read().relevant == relevant
    corpus = CORPUS.validate_python({"kind": "retrieval", "path": str(folder)}).build()
    assert len(corpus.examples) == (2 if graded else 3)


WRONG: dict[str, tuple[str, Rows, str]] = {
    "lists of other lengths": (
        "clustering",
        [{"text": ["a", "b"], "label": [1]}],
        "row 1 of .* has 2 elements in column 'text' and 1 in 'label'",
    ),
    "no text in a list": (
        "reranking",
        [{"query": "a", "positive": ["b"], "negative": [None]}],
        "row 1 of .* has None in a list of 'positive' or 'negative', expected text",
    ),
    "grades of other lengths": (
        "summarization",
        [{"human_summaries": ["a"], "machine_summaries": ["b", "c"], "relevance": [1.0]}],
        "row 1 of .* has 2 elements in column 'machine_summaries' and 1 in 'relevance'",
    ),
    "a grade that is none": (
        "summarization",
        [{"human_summaries": ["a"], "machine_summaries": ["b"], "relevance": ["good"]}],
        r"row 1 of .* has \['good'\] in column 'relevance', expected a list of finite numbers",
    ),
    "one grade": (
        "summarization",
        [{"human_summaries": ["a"], "machine_summaries": ["b", "c"], "relevance": [1.0, 1.0]}],
        "no document of .* has summaries of different 'relevance'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lists_are_refused(tmp_path: Path, case: str) -> None:
    kind, rows, says = WRONG[case]
    write(tmp_path / kind / "test.jsonl", rows)
    with pytest.raises(InputError, match=says):
        task(tmp_path, kind).read()


def shards(
    folder: Path, rows: Rows, n: int, name: str = "test", extension: str = ".parquet"
) -> None:
    """The rows in files as the hub names them."""
    size = -(-len(rows) // n)
    for i in range(n):
        part = rows[i * size : (i + 1) * size]
        write(folder / f"{name}-{i:05d}-of-{n:05d}{extension}", part)


@pytest.mark.parametrize("place", ["", "data", "test"])
def test_a_task_in_shards(tmp_path: Path, place: str) -> None:
    rows = rows_of(tmp_path / "flat", "sts")
    folder = tmp_path / "a [1]" / "sts" / place
    shards(folder, rows, 3)
    config = task(tmp_path / "a [1]", "sts")
    assert config.read() == task(tmp_path / "flat", "sts").read()
    first = config.digests()
    write(folder / "test-00001-of-00003.parquet", rows[8:15])
    assert config.digests() != first
    (folder / "test-00001-of-00003.parquet").unlink()
    with pytest.raises(InputError, match=r"2 shards of 3 \(.*number 1 is missing"):
        config.read()


def test_a_task_whose_files_a_pattern_names(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "flat", "sts")
    shards(tmp_path / "sts" / "parts", rows, 2, "x", ".jsonl")
    found = task(tmp_path, "sts", split="parts/x-*.jsonl").read()
    assert found == task(tmp_path / "flat", "sts").read()


def test_a_search_in_shards(tmp_path: Path) -> None:
    rows = {name: rows_of(tmp_path / "flat", "retrieval", name) for name in ("corpus", "queries")}
    folder = write_task(tmp_path / "other", "retrieval")
    for name in rows:
        (folder / f"{name}.parquet").unlink()
        shards(folder / name, rows[name], 2, name)
    found = task(tmp_path / "other", "retrieval").read()
    assert found == task(tmp_path / "flat", "retrieval").read()


CLASSES: Rows = [{"text": f"snow {i}", "label": i % 2} for i in range(6)]


def classes(path: Path) -> CorpusConfig:
    files = {"train": str(path)}
    return CORPUS.validate_python(
        {"kind": "files", "files": files, "task": {"kind": "classification"}}
    )


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_split_in_shards_is_a_folder_or_a_pattern(tmp_path: Path, extension: str) -> None:
    write(tmp_path / f"one{extension}", CLASSES)
    shards(tmp_path / "train", CLASSES, 2, "train", extension)
    wanted = classes(tmp_path / f"one{extension}").build()
    (tmp_path / "train" / "README.md").write_text("notes")
    for path in (tmp_path / "train", tmp_path / "train" / f"train-*{extension}"):
        found = classes(path).build()
        assert (found.texts, found.examples) == (wanted.texts, wanted.examples)
    key = classes(tmp_path / "train").facts()
    assert key == classes(tmp_path / "train" / f"*{extension}").facts()
    assert key["files"]["train"]["format"] == extension[1:]
    write(tmp_path / "train" / f"train-00001-of-00002{extension}", CLASSES[:3])
    assert classes(tmp_path / "train").facts() != key


def test_files_that_may_not_be_one_split_are_refused(tmp_path: Path) -> None:
    for path, says in (
        (tmp_path / "nothing-*.jsonl", "no file fits the pattern"),
        (tmp_path, "is a folder without files"),
    ):
        with pytest.raises(InputError, match=says):
            classes(path).build()
    shards(tmp_path / "a", CLASSES, 2, "train", ".jsonl")
    write(tmp_path / "a" / "test.jsonl", CLASSES)
    with pytest.raises(InputError, match=r"test\.jsonl, train-.*which of them are meant"):
        classes(tmp_path / "a").build()
    (tmp_path / "a" / "test.jsonl").unlink()
    (tmp_path / "a" / "train-00000-of-00002.jsonl").unlink()
    with pytest.raises(InputError, match=r"1 shards of 2 .*number 0 is missing"):
        classes(tmp_path / "a").build()
    write(tmp_path / "b" / "0.jsonl", CLASSES)
    write(tmp_path / "b" / "1.csv", CLASSES)
    with pytest.raises(InputError, match="several formats"):
        classes(tmp_path / "b").build()
    write(tmp_path / "c" / "0.jsonl", CLASSES)
    write(tmp_path / "c" / "1.jsonl", [{"text": "snow", "label": "cold"}])
    with pytest.raises(InputError, match="cannot be put together"):
        classes(tmp_path / "c").build()
    (tmp_path / "c" / "1.jsonl").write_text(json.dumps({"text": "snow"}) + "\n")
    with pytest.raises(InputError, match=r"row 7 of .* has no label in column 'label'"):
        classes(tmp_path / "c").build()
