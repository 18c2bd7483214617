"""The TEXTS argument of the command line."""

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.corpus import texts as module
from permafrost.stages.corpus.texts import read_rows, read_texts
from permafrost.storage.errors import InputError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["b", "a", "b"], "title": ["1", "2", "3"]}), path)
    return path


def test_order_and_repetitions_are_kept(table: Path) -> None:
    assert read_texts(str(table)) == ["b", "a", "b"]


def test_a_column_can_be_named(table: Path) -> None:
    assert read_texts(f"{table}::title") == ["1", "2", "3"]


def test_a_missing_column_lists_those_there_are(table: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'body'; its columns are 'text', 'title'"):
        read_texts(f"{table}::body")


def test_pairs_and_ids_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    columns = {"text": ["b", "a"], "other": ["c", "d"], "number": [7, 5]}
    keys = pa.array(["x", "y"]).dictionary_encode()
    pq.write_table(pa.table({**columns, "key": keys, "gap": [None, 3]}), path)
    rows = read_rows(str(path), "other", "key")
    assert (rows.texts, rows.pairs) == (["b", "a"], ["c", "d"])
    assert rows.ids.to_pylist() == ["x", "y"]
    assert read_rows(str(path), None, "number").ids.to_pylist() == [7, 5]
    assert read_rows(str(path)).ids.to_pylist() == [0, 1]
    assert read_rows(str(path)).pairs is None
    with pytest.raises(InputError, match=r"row 1 of .* has nothing in column 'gap' \(1 such of 2"):
        read_rows(str(path), None, "gap")
    pq.write_table(pa.table({"text": ["a", "b"], "key": ["x", " "]}), path)
    with pytest.raises(InputError, match=r"row 2 of .* has the blank id ' ' in column 'key'"):
        read_rows(str(path), None, "key")
    table = tmp_path / "pairs.csv"
    table.write_bytes("text|other|key\ncafé|b|007\n".encode("latin-1"))
    rows = read_rows(str(table), "other", "key", delimiter="|", encoding="latin-1")
    assert (rows.texts, rows.pairs, rows.ids.to_pylist()) == (["café"], ["b"], ["007"])
    for raw, says in (
        (b"text;other\na, b;c\n", "--delimiter ';'"),
        (b"word\ttext\na\tb\n", r"no column 'text'.*--delimiter '\\t'"),
        ("text\ncafé\n".encode("latin-1"), "row 1 .*--encoding cp1252"),
        ("text\na\n".encode("utf-16"), "--encoding utf-16"),
    ):
        table.write_bytes(raw)
        with pytest.raises(InputError, match=says):
            read_rows(str(table))
    with pytest.raises(InputError, match="a dataset, which has no delimiter"):
        read_rows("hf:org/name:test", delimiter="|")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
def test_every_format_is_read(tmp_path: Path, suffix: str) -> None:
    content = {"csv": "text\na\nb\n", "jsonl": '{"text": "a"}\n{"text": "b"}\n', "txt": "a\nb"}
    path = tmp_path / f"a.{suffix}"
    path.write_text(content[suffix])
    assert read_texts(str(path)) == ["a", "b"]


@pytest.mark.parametrize("spec", ["::text", "a.csv::", "hf:data", "hf::train:text", "hf:a:b:c:d"])
def test_a_malformed_argument_says_the_form(spec: str) -> None:
    with pytest.raises(InputError, match="is not of the form"):
        read_texts(spec)


def test_a_blank_text_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,x\na,1\n  ,2\n")
    with pytest.raises(InputError, match="row 2"):
        read_texts(str(path))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = datasets.Dataset.from_dict({"text": ["a", "a"], "title": ["x", "y"]})
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_dataset_folder_is_read_with_and_without_a_column(saved: Path) -> None:
    assert read_texts(f"hf:{saved}:train") == ["a", "a"]
    assert read_texts(f"hf:{saved}:train:title") == ["x", "y"]


def test_the_split_of_a_dataset_may_have_slices(saved: Path) -> None:
    """It was cut at the colon of the slice."""
    assert read_texts(f"hf:{saved}:train[:1]") == ["a"]
    assert read_texts(f"hf:{saved}:train[1:]+train[:1]:title") == ["y", "x"]
    with pytest.raises(InputError, match=r"'train\[100:\]' selects no rows of 'train'"):
        read_texts(f"hf:{saved}:train[100:]:text")


@pytest.mark.parametrize(
    ("name", "exists", "expected"),
    [
        ("owner/name", {"owner/name"}, ("owner/name", "default")),
        ("owner/name/config", {"owner/name"}, ("owner/name", "config")),
        ("name/config", {"name"}, ("name", "config")),
        ("name", {"name"}, ("name", "default")),
    ],
)
def test_the_longest_id_that_exists_is_the_dataset(
    monkeypatch: pytest.MonkeyPatch, name: str, exists: set[str], expected: tuple[str, str]
) -> None:
    def resolve_commit(path: str, revision: str) -> str:
        if path not in exists:
            raise InputError(f"no {path}")
        return "commit"

    seen: list[tuple[str, ...]] = []

    def open_split(path: str, config: str, revision: str, split: str) -> datasets.Dataset:
        seen.append((path, config, revision, split))
        return datasets.Dataset.from_dict({"body": ["a"]})

    monkeypatch.setattr(module, "resolve_commit", resolve_commit)
    monkeypatch.setattr(module, "open_split", open_split)
    assert read_texts(f"hf:{name}:test:body") == ["a"]
    assert seen == [(*expected, "commit", "test")]


def test_a_dataset_that_exists_nowhere_reports_the_whole_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve_commit(path: str, revision: str) -> str:
        raise InputError(f"no {path}")

    monkeypatch.setattr(module, "resolve_commit", resolve_commit)
    with pytest.raises(InputError, match="no owner/name"):
        read_texts("hf:owner/name:test:body")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_blank_line_of_a_single_column_is_a_blank_text(
    tmp_path: Path, suffix: str, end: str
) -> None:
    """It was left out, so that there was one vector less than rows."""
    path = tmp_path / f"a{suffix}"
    for text in ("\ntext\na\n\nb\n", "text\na\n\nb"):
        path.write_bytes(text.replace("\n", end).encode("utf-16"))
        with pytest.raises(InputError, match=r"row 2 of .* has the blank text"):
            read_rows(str(path), encoding="utf-16")
    path.write_bytes("\ufeff\n\ntext\na\nb\n\n\n".replace("\n", end).encode())
    assert read_texts(str(path)) == ["a", "b"]


def test_a_quoted_blank_at_the_end_is_a_row(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text('text\n"a\n\nb"\n""\n\n')
    with pytest.raises(InputError, match=r"row 2 of .* has the blank text"):
        read_texts(str(path))
    path.write_text("text\n\n")
    with pytest.raises(InputError, match="no rows"):
        read_texts(str(path))


def test_a_blank_line_of_several_columns_is_no_row(tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("text,n\na,1\n\nb,2\n")
    assert read_texts(str(path)) == ["a", "b"]


def test_the_column_has_any_usual_name_in_files_and_datasets(tmp_path: Path) -> None:
    rows = {"Sentence": ["a", "b"], "label": [0, 1]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("Sentence,label\na,0\nb,1\n")
    (tmp_path / "a.jsonl").write_text('{"label": 0, "Sentence": "a"}\n{"Sentence": "b"}\n')
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        assert read_texts(str(tmp_path / name)) == ["a", "b"]
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    assert read_texts(f"hf:{tmp_path / 'saved'}:train") == ["a", "b"]
    (path := tmp_path / "pairs.csv").write_text("premise,hypothesis\na,b\n")
    pairs = read_rows(str(path), "hypothesis")
    assert (pairs.texts, pairs.pairs) == (["a"], ["b"])
    # A column `text` is the one that is meant, whatever else is there.
    path.write_text("sentence,text\na,b\n")
    assert read_texts(str(path)) == ["b"]


def test_the_message_about_columns_is_of_commands(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text('{"body": "a"}\n')
    datasets.Dataset.from_dict({"body": ["a"]}).save_to_disk(tmp_path / "saved")
    for spec, form in (
        (str(path), "FILE::COLUMN"),
        (f"hf:{tmp_path / 'saved'}:train", "hf:DATASET"),
    ):
        with pytest.raises(InputError, match=f"'text' .nor .*'body'. Name one as {form}"):
            read_texts(spec)
    with pytest.raises(InputError, match=r"no column 'c'.*'body'. Name one of these in its place$"):
        read_rows(f"{path}::body", "c")
    path.write_text('{"sentence": "a", "content": "b"}\n')
    with pytest.raises(InputError, match=r"2 columns that could be meant.* Name one as FILE"):
        read_texts(str(path))


@pytest.mark.parametrize("given", ["", "::premise"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_column_is_not_paired_with_itself(tmp_path: Path, name: str, given: str) -> None:
    rows = '{"premise": "a", "answer": "b"}' if name == "a.jsonl" else "premise,answer\na,b"
    (path := tmp_path / name).write_text(f"{rows}\n")
    with pytest.raises(
        InputError, match=r"'premise' of .* would be both texts .* FILE::COLUMN for"
    ):
        read_rows(f"{path}{given}", "premise")
    assert read_rows(str(path), "answer").pairs == ["b"]
