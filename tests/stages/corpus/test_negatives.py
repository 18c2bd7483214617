"""Pairs without labels, and their hard negatives, from files and datasets."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.corpus import EXAMPLES, WITH_NEGATIVES, Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.fit import FitData
from permafrost.storage.errors import InputError

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
COLUMNS = {"text": "query", "text_pair": "positive", "negative": "negative"}

QUERIES = ["a?", "b?", "c?", "d?"]
POSITIVES = ["a!", "b!", "c!", "d!"]
LISTS = [["b!", "x"], [], None, ["y"]]
SINGLES = ["b!", "", None, "y"]


def build(files: dict[str, Path], columns: dict[str, str] = COLUMNS, **fields: Any) -> Corpus:
    named = {split: str(path) for split, path in files.items()}
    task = {"kind": "unlabelled", **columns}
    return ADAPTER.validate_python(
        {"kind": "files", "files": named, "task": task, **fields}
    ).build()


def parquet(path: Path, negatives: Any, kind: pa.DataType | None = None) -> Path:
    columns = {"query": QUERIES, "positive": POSITIVES, "negative": pa.array(negatives, kind)}
    pq.write_table(pa.table(columns), path)
    return path


def jsonl(path: Path, negatives: Any) -> Path:
    rows = zip(QUERIES, POSITIVES, negatives, strict=True)
    lines = [json.dumps({"query": q, "positive": p, "negative": n, "id": 1}) for q, p, n in rows]
    path.write_text("\n".join(lines))
    return path


def negatives_of(corpus: Corpus) -> list[list[str]]:
    return [[corpus.texts[i] for i in row] for row in corpus.examples["negatives"].to_pylist()]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string_view())],
    ids=str,
)
def test_a_column_of_lists_gives_each_example_its_own_number_of_negatives(
    tmp_path: Path, kind: pa.DataType
) -> None:
    corpus = build({"train": parquet(tmp_path / "a.parquet", LISTS, kind)})
    assert corpus.texts == ("a?", "b?", "c?", "d?", "a!", "b!", "c!", "d!", "x", "y")
    assert negatives_of(corpus) == [["b!", "x"], [], [], ["y"]]
    assert corpus.examples.schema.equals(WITH_NEGATIVES)
    plain = corpus.examples.drop_columns("negatives")
    assert plain.to_pydict() == {
        "split": ["train"] * 4,
        "text": [0, 1, 2, 3],
        "text_pair": [4, 5, 6, 7],
        "label": [None] * 4,
    }
    assert jsonl_equals(tmp_path, LISTS, corpus)


def jsonl_equals(folder: Path, negatives: Any, corpus: Corpus) -> bool:
    return build({"train": jsonl(folder / "same.jsonl", negatives)}) == corpus


def test_a_column_of_single_texts_may_be_empty_in_some_rows(tmp_path: Path) -> None:
    corpus = build({"train": parquet(tmp_path / "a.parquet", SINGLES)})
    assert negatives_of(corpus) == [["b!"], [], [], ["y"]]
    assert jsonl_equals(tmp_path, SINGLES, corpus)
    rows = zip(QUERIES, POSITIVES, SINGLES, strict=True)
    lines = [f"{q},{p},{n or ''}" for q, p, n in rows]
    (tmp_path / "a.csv").write_text("\n".join(["query,positive,negative", *lines]) + "\n")
    assert build({"train": tmp_path / "a.csv"}) == corpus


def test_lists_of_a_fixed_length_are_lists(tmp_path: Path) -> None:
    kind = pa.list_(pa.string(), 2)
    found = [["x", "y"], ["y", "z"], None, ["x", "z"]]
    corpus = build({"train": parquet(tmp_path / "a.parquet", found, kind)})
    assert negatives_of(corpus) == [["x", "y"], ["y", "z"], [], ["x", "z"]]


def test_one_split_may_have_none_at_all(tmp_path: Path) -> None:
    files = {
        "train": parquet(tmp_path / "train.parquet", LISTS),
        "dev": parquet(tmp_path / "dev.parquet", [None] * 4),
        "test": parquet(tmp_path / "test.parquet", [[]] * 4, pa.list_(pa.string())),
        "more": parquet(tmp_path / "more.parquet", [""] * 4),
        "last": jsonl(tmp_path / "last.jsonl", [None] * 4),
    }
    corpus = build(files)
    assert negatives_of(corpus) == [["b!", "x"], [], [], ["y"], *[[]] * 16]
    assert corpus.splits == tuple(files)


def test_a_saved_corpus_with_negatives_loads_equal(tmp_path: Path) -> None:
    corpus = build({"train": parquet(tmp_path / "a.parquet", LISTS)})
    (tmp_path / "saved").mkdir()
    corpus.save(tmp_path / "saved")
    assert Corpus.load(tmp_path / "saved") == corpus


def test_pairs_without_negatives_have_the_columns_they_always_had(tmp_path: Path) -> None:
    columns = {"text": "query", "text_pair": "positive"}
    corpus = build({"train": parquet(tmp_path / "a.parquet", LISTS)}, columns)
    assert corpus.examples.schema.equals(EXAMPLES)
    assert corpus.texts == ("a?", "b?", "c?", "d?", "a!", "b!", "c!", "d!")
    assert corpus.examples["text_pair"].to_pylist() == [4, 5, 6, 7]


def test_dev_from_train_takes_the_negatives_with_their_rows(tmp_path: Path) -> None:
    n = 20
    table = {
        "query": [f"q{i}" for i in range(n)],
        "positive": [f"p{i}" for i in range(n)],
        "negative": [[f"n{i}"] * (i % 3) for i in range(n)],
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    corpus = build({"train": tmp_path / "a.parquet"}, dev={"kind": "from_train", "fraction": 0.3})
    assert corpus.split("dev").num_rows == 6
    for row in corpus.examples.to_pylist():
        i = int(corpus.texts[row["text"]][1:])
        assert [corpus.texts[t] for t in row["negatives"]] == [f"n{i}"] * (i % 3)


def test_a_dataset_gives_the_corpus_that_a_file_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = {"query": QUERIES, "positive": POSITIVES, "negative": [n or [] for n in LISTS]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    task = {"kind": "unlabelled", **COLUMNS}
    config = {
        "kind": "hub",
        "path": str(tmp_path / "saved"),
        "splits": {"train": "train"},
        "task": task,
    }
    found = ADAPTER.validate_python(config).build()
    assert found == build({"train": parquet(tmp_path / "a.parquet", LISTS)})


def test_training_sees_them_as_ragged_lists_of_texts(tmp_path: Path) -> None:
    corpus = build({"train": parquet(tmp_path / "a.parquet", LISTS)})
    data = FitData({}, corpus.examples, (), corpus.digests, corpus.task)
    negatives = data.split("train").negatives
    assert negatives is not None
    assert [row.tolist() for row in negatives] == [[5, 8], [], [], [9]]
    plain = data.examples.drop_columns("negatives")
    assert FitData({}, plain, (), corpus.digests, corpus.task).split("train").negatives is None


# Refusals


@pytest.mark.parametrize(
    ("negatives", "says"),
    [
        ([["x"], ["y", " "], [], []], r"row 2 of .*blank text ' '.*'negative' \(1 such of 3 texts"),
        ([["x"], [], ["y", None], []], r"row 3 of .*has no text.*'negative'"),
        (["x", "\t", "y", "z"], r"row 2 of .*blank text '\\t'"),
        ([["x"], ["b!"], [], []], r"row 2 of .*'negative' that is the row's own text or text_pair"),
        ([["x"], [], ["y", "c?"], []], r"row 3 of .*own text.*\(1 such of 3 negatives\)"),
        ([1, 2, 3, 4], "holds int64, expected a text or a list of texts in each row"),
        ([[1], [2], [], []], "holds list<.*int64>, expected a text or a list"),
        ([None] * 4, "column 'negative' holds no text in any row of any split; name the column"),
        ([b"x", b"caf\xe9", None, None], r"row 2 of .*'negative', is not valid UTF-8.*caf"),
    ],
)
def test_negatives_that_are_no_texts_are_refused_with_their_row(
    tmp_path: Path, negatives: list[Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        build({"train": parquet(tmp_path / "a.parquet", negatives)})


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv"])
def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, name: str) -> None:
    if name.endswith("csv"):
        (tmp_path / name).write_text("query,positive,negative\na,b,c\n")
    else:
        {"a.parquet": parquet, "a.jsonl": jsonl}[name](tmp_path / name, LISTS)
    with pytest.raises(
        InputError, match=r"no column 'hard'; its columns are .*'negative'.*Write 'negative: NAME'"
    ):
        build({"train": tmp_path / name}, {**COLUMNS, "negative": "hard"})


def test_json_values_of_changing_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 2 of .*a\.jsonl has 'y' in .* expected lists"):
        build({"train": jsonl(tmp_path / "a.jsonl", [["x"], "y", None, None])})


def test_negatives_without_a_second_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="negative is the column 'n', but text_pair is not"):
        build({"train": tmp_path / "a.parquet"}, {"negative": "n"})
    with pytest.raises(ValidationError, match="column 'q' has two roles"):
        build({"train": tmp_path / "a.parquet"}, {"text_pair": "q", "negative": "q"})


def test_segments_are_not_cut_from_pairs(tmp_path: Path) -> None:
    source = {
        "kind": "files",
        "files": {"test": str(tmp_path / "a.parquet")},
        "task": {"kind": "unlabelled", "text_pair": "b"},
    }
    with pytest.raises(ValidationError, match="source of segments has pairs"):
        ADAPTER.validate_python({"kind": "segments", "source": source})


def test_the_numbers_of_the_texts_are_int64_whatever_the_source(tmp_path: Path) -> None:
    corpus = build({"train": parquet(tmp_path / "a.parquet", LISTS, pa.large_list(pa.string()))})
    flat = corpus.examples["negatives"].combine_chunks().flatten().to_numpy()
    assert flat.dtype == np.int64
