"""Corpora from files: what is read, and what is refused with which message."""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)


def config(files: dict[str, Path], kind: str = "classification", **fields: Any) -> CorpusConfig:
    columns = fields.pop("columns", {})
    return ADAPTER.validate_python(
        {
            "kind": "files",
            "files": {split: str(path) for split, path in files.items()},
            "task": {"kind": kind, **columns},
            **fields,
        }
    )


def build(path: Path, kind: str = "classification", **columns: str) -> Corpus:
    return config({"train": path}, kind, columns=columns).build()


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


ROWS = [("good", 1), ('bad, "really"\nbad', 0), ("gut ü", 1), ("good", 1)]


def write_rows(path: Path) -> Path:
    texts, labels = [t for t, _ in ROWS], [n for _, n in ROWS]
    if path.suffix == ".parquet":
        return parquet(path, other=[[1]] * 4, text=texts, label=labels)
    if path.suffix.lower() == ".csv":
        quoted = [t.replace('"', '""') for t in texts]
        lines = [f'x{i},"{t}",{n}' for i, (t, n) in enumerate(zip(quoted, labels, strict=True))]
        return write(path, "\n".join(["other,text,label", *lines]) + "\n")
    # The column that is not asked for has a type that changes from row to row.
    objects = [
        {"other": i if i % 2 else "x", "text": t, "label": n} for i, (t, n) in enumerate(ROWS)
    ]
    return write(path, "\n".join(map(json.dumps, objects)))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".CSV"])
def test_every_format_gives_the_same_corpus(tmp_path: Path, suffix: str) -> None:
    corpus = build(write_rows(tmp_path / f"train{suffix}"))
    assert corpus.texts == ("good", 'bad, "really"\nbad', "gut ü")
    assert corpus.digests == tuple(hashlib.sha256(t.encode()).hexdigest() for t in corpus.texts)
    assert corpus.label_names == ("0", "1")
    assert corpus.task == "classification"
    assert corpus.examples.to_pydict() == {
        "split": ["train"] * 4,
        "text": [0, 1, 2, 0],
        "text_pair": [None] * 4,
        "label": [1.0, 0.0, 1.0, 1.0],
    }


def test_a_text_file_has_one_text_per_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", b"\xef\xbb\xbfone\r\ntwo \xc2\x85 still two\none\n")
    corpus = config({"anything": path}, "unlabelled").build()
    assert corpus.texts == ("one", "two \x85 still two")
    assert corpus.examples.to_pydict() == {
        "split": ["anything"] * 3,
        "text": [0, 1, 0],
        "text_pair": [None] * 3,
        "label": [None] * 3,
    }


def test_pairs_share_texts_with_each_other_and_across_splits(tmp_path: Path) -> None:
    train = parquet(tmp_path / "a.parquet", q=["a", "b"], p=["b", "c"], y=["no", "yes"])
    test = write(tmp_path / "b.csv", "y,p,q\nyes,a,d\n")
    columns = {"text": "q", "text_pair": "p", "label": "y"}
    corpus = config({"train": train, "test": test}, "pair_classification", columns=columns).build()
    names = [
        (corpus.texts[e["text"]], corpus.texts[e["text_pair"]], corpus.label_names[int(e["label"])])
        for e in corpus.examples.to_pylist()
    ]
    assert names == [("a", "b", "no"), ("b", "c", "yes"), ("d", "a", "yes")]
    assert sorted(corpus.texts) == ["a", "b", "c", "d"]
    assert corpus.splits == ("train", "test")


def test_scores_keep_their_scale_and_have_no_class_names(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", "text,text_pair,score\na,b,4.5\nc,d,0\n")
    corpus = build(path, "similarity", label="score")
    assert corpus.examples.column("label").to_pylist() == [4.5, 0.0]
    assert corpus.label_names == ()


@pytest.mark.parametrize(
    ("labels", "names", "indices"),
    [
        (["pos", "neg", "pos"], ("neg", "pos"), [1, 0, 1]),
        ([10, 2, 10], ("2", "10"), [1, 0, 1]),
        ([1.0, 3.0, 3.0], ("1", "3"), [0, 1, 1]),
        ([-1, 1, 1], ("-1", "1"), [0, 1, 1]),
        ([True, False, True], ("false", "true"), [1, 0, 1]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b"), [1, 0, 1]),
    ],
)
def test_classes_are_sorted_by_value(
    tmp_path: Path, labels: Any, names: tuple[str, ...], indices: list[int]
) -> None:
    corpus = build(parquet(tmp_path / "a.parquet", text=["a", "b", "c"], label=labels))
    assert corpus.label_names == names
    assert corpus.examples.column("label").to_pylist() == indices


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_string_type_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    path = parquet(tmp_path / "a.parquet", text=pa.array(["a", "b"], kind), label=[0, 1])
    assert build(path).texts == ("a", "b")


def test_texts_that_look_like_numbers_or_missing_values_stay_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\n2020-01-01,0\n007,1\nNA,0\nnull,1\n")
    assert build(path).texts == ("2020-01-01", "007", "NA", "null")


def test_a_document_longer_than_the_default_block_of_the_reader_is_read(tmp_path: Path) -> None:
    long = "word " * 500_000
    for suffix, content in (
        (".csv", f"text\n{long}\nb\n"),
        (".jsonl", f'{{"text": "{long}"}}\n{{"text": "b"}}\n'),
    ):
        path = write(tmp_path / f"a{suffix}", content)
        assert config({"all": path}, "unlabelled").build().texts == (long, "b")


@pytest.mark.parametrize("classes", [("2020-01-01", "2020-01-02"), ("10:30", "10:31:00")])
def test_dates_and_times_in_csv_are_names_of_classes(
    tmp_path: Path, classes: tuple[str, str]
) -> None:
    lines = [f"a,{classes[0]}", f"b,{classes[1]}", f"c,{classes[0]}"]
    corpus = build(write(tmp_path / "a.csv", "\n".join(["text,label", *lines, ""])))
    assert corpus.label_names == classes
    dated = parquet(tmp_path / "a.parquet", text=["a"], label=[datetime.date(2020, 1, 1)])
    with pytest.raises(InputError, match=r"holds date32.*2020, 1, 1.*convert the column to text"):
        build(dated)


def test_quotation_marks_of_a_tsv_are_part_of_its_texts(tmp_path: Path) -> None:
    """Also around a whole text, as GLUE has them."""
    texts = ['"what is it?"', '"so" he said, "well"', '6" wide', '"']
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(texts)]
    path = write(tmp_path / "a.tsv", "\n".join(["text\tlabel", *lines, ""]))
    assert build(path).texts == tuple(texts)


@pytest.mark.parametrize("splits", [True, False])
def test_a_folder_of_save_to_disk_is_named_as_such(tmp_path: Path, splits: bool) -> None:
    made = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    (datasets.DatasetDict({"train": made}) if splits else made).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match=r"save_to_disk; use a task of kind 'hub' .*hf:.*saved:"):
        build(tmp_path / "saved")


BROKEN: dict[str, tuple[str, str | bytes, list[str]]] = {
    "a column is missing": ("a.csv", "txt,label\na,1\n", ["no column 'text'", "'txt', 'label'"]),
    "a label column is missing": ("a.jsonl", '{"text": "a"}\n', ["no column 'label'", "'text'"]),
    "a column is twice there": ("a.csv", "text,label,label\na,1,2\n", ["more than one", "'label'"]),
    "a text is empty": ("a.csv", "text,label\na,1\n,0\n", ["row 2", "''", "'text'", "1 such of 2"]),
    "a text is white": ("a.csv", "text,label\na,1\nb,0\n\u3000 ,0\n", ["row 3", "blank"]),
    "a text is null": (
        "a.jsonl",
        '{"text": "a", "label": 1}\n{"label": 0}\n',
        ["row 2", "no text"],
    ),
    "a text is a number": (
        "a.jsonl",
        '{"text": "a", "label": 1}\n{"text": 3, "label": 1}\n',
        ["row 2", "has 3 in column 'text', expected text", "one type"],
    ),
    "a label is missing": ("a.csv", "text,label\na,1\nb,\n", ["row 2", "no label", "'label'"]),
    "a string label is empty": ("a.csv", "text,label\na,x\nb,\n", ["row 2", "''", "empty"]),
    "labels are graded": ("a.csv", "text,label\na,1.5\nb,2\n", ["row 1", "1.5", "similarity"]),
    "a label is hidden": ("a.csv", "text,label\na,-1\nb,0\nc,1\n", ["row 1", "-1", "no label"]),
    "labels in csv are fractions": ("a.csv", 'text,label\na,"1.10"\n', ["row 1", "v1.1 is a name"]),
    "texts in tsv are quoted as in csv": (
        "a.tsv",
        'text\tlabel\n"he said ""hi"""\t1\nb\t0\n',
        ["is quoted as in csv", "call it .csv, with 'delimiter: \"\\t\"'"],
    ),
    "a text in tsv has a line break": (
        "a.tsv",
        'text\tlabel\n"a\nb"\t1\n',
        ["Expected 2 columns, got 1", "with quoted fields call it .csv"],
    ),
    "labels change type": (
        "a.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n',
        ["row 2", "has 'x' in column 'label', expected numbers"],
    ),
    "a label is a list": ("a.jsonl", '{"text": "a", "label": [1]}\n', ["row 1", "[1]", "'label'"]),
    "there is one class": ("a.csv", "text,label\na,1\nb,1\n", ["only the class 1", "two"]),
    "a file is empty": ("a.csv", "", ["empty (0 bytes)"]),
    "a file has a header only": ("a.csv", "text,label\n", ["no rows"]),
    "a line has too many cells": (
        "a.csv",
        "text,label\na,1\nb,0,3\n",
        ["Expected 2 columns, got 3"],
    ),
    "a parquet file is garbage": (
        "a.parquet",
        "PAR1 nonsense PAR1",
        ["cannot be read as .parquet"],
    ),
    "a json line is cut": (
        "a.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b',
        ["row 2", "no JSON object on one line"],
    ),
    "the first json line is cut": ("a.jsonl", '{"text": ', ["one object per line"]),
    "a file is a json array": ("a.jsonl", '[{"text": "a", "label": 1}]', ["list", "object"]),
    "csv is not UTF-8": ("a.csv", b"text,label\na,1\ncaf\xe9,0\n", ["row 2", "caf\\xe9", "UTF-8"]),
    "jsonl is not UTF-8": (
        "a.jsonl",
        b'{"text": "a", "label": 1}\n{"text": "caf\xe9", "label": 0}\n',
        ["row 2", "caf\\xe9", "UTF-8"],
    ),
    "a header is not UTF-8": ("a.csv", b"text,caf\xe9\na,1\n", ["cannot be read", "utf-8"]),
    "the extension is unknown": ("a.dat", "text\tlabel\na\t1\n", ["'.dat'", ".parquet, .csv"]),
    "a text file has labels": ("a.txt", "a\nb\n", ["no column 'label'", "one text per line"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_bad_files_are_refused_with_what_where_and_what_to_do(tmp_path: Path, case: str) -> None:
    name, content, expected = BROKEN[case]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        build(path)
    message = str(caught.value)
    assert str(path) in message
    assert [part for part in expected if part not in message] == [], message


def test_a_blank_line_in_a_text_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n\ntwo\n")
    with pytest.raises(InputError, match=r"row 2 of .* has the blank text ''"):
        config({"all": path}, "unlabelled").build()


def test_a_column_of_numbers_is_not_text(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=[1, 2], label=[0, 1])
    with pytest.raises(
        InputError, match=r"'text' of .* holds int64, expected text; .*store it as text"
    ):
        build(path)


def test_text_is_not_a_score(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sentence1,sentence2,Score\na,b,1\nc,d,high\n")
    with pytest.raises(
        InputError, match=r"'Score' of .* holds text \(row 2: 'high'\), expected numbers"
    ):
        build(path, "similarity")
    path = parquet(
        tmp_path / "a.parquet", text=["a", "b"], text_pair=["c", "d"], label=[1, float("inf")]
    )
    with pytest.raises(InputError, match=r"row 2 of .* label inf .* not a finite score"):
        build(path, "similarity")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        build(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a folder"):
        build(tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        config({"train": tmp_path / "nowhere.csv"}).facts()


def test_a_class_that_train_does_not_have_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "text,label\na,pos\nb,neg\n")
    test = write(tmp_path / "test.csv", "text,label\nc,neg\nd,postive\n")
    with pytest.raises(InputError, match=r"row 2 of .*test.csv.*'postive'.*never occurs in train"):
        config({"train": train, "test": test}).build()


@pytest.mark.parametrize(
    ("label", "says"),
    [
        (" ", r"row 2 of .*train\.csv: the label ' ' .* is empty or blank"),
        (
            "yes ",
            "holds the classes 'yes' and 'yes ', which differ in spaces alone; write them alike",
        ),
    ],
)
def test_labels_that_nobody_means_are_refused(tmp_path: Path, label: str, says: str) -> None:
    train = write(tmp_path / "train.csv", f'text,label\na,no\nb,"{label}"\nc,yes\n')
    with pytest.raises(InputError, match=says):
        config({"train": train}).build()


def test_a_number_too_large_for_a_class_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "text,label\na,0\nb,1e20\n")
    with pytest.raises(
        InputError, match=r"row 2 of .*train\.csv: the label 1e\+20 .* is not a class"
    ):
        config({"train": train}).build()


def test_whole_numbers_of_64_bits_are_refused_as_classes_and_rounded_as_grades(
    tmp_path: Path,
) -> None:
    labels = pa.array([0, 2**63], pa.uint64())
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "text_pair": ["c", "d"], "label": labels}), path)
    with pytest.raises(InputError, match=r"row 2 of .* label 9223372036854775808 .* too large for"):
        config({"train": path}).build()
    graded = config({"train": path}, task={"kind": "similarity"}).build()
    assert graded.split("train").column("label").to_pylist() == [0.0, 2.0**63]


def test_splits_with_labels_of_different_types_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "text,label\na,0\nb,one\n")
    test = write(tmp_path / "test.jsonl", '{"text": "c", "label": 0}\n')
    with pytest.raises(InputError, match=r"text in .*train.csv, double in .*test.jsonl"):
        config({"train": train, "test": test}).build()


def test_unknown_splits_and_two_dev_splits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(ValidationError, match="'training' is not one of train, dev, test"):
        config({"training": path})
    carve = {"kind": "from_train", "fraction": 0.5}
    with pytest.raises(ValidationError, match="splits are train, dev"):
        config({"train": path, "dev": path}, dev=carve)
    with pytest.raises(ValidationError, match="needs a split 'train'"):
        config({"test": path}, dev=carve)


def test_a_column_with_two_roles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="column 'q' has two roles"):
        config({"train": tmp_path / "a.csv"}, "similarity", columns={"text": "q", "text_pair": "q"})


def carved(path: Path, seed: int = 0, fraction: float = 0.3) -> Corpus:
    dev = {"kind": "from_train", "fraction": fraction, "seed": seed}
    return config({"train": path}, dev=dev).build()


def dev_texts(corpus: Corpus) -> set[str]:
    return {corpus.texts[i] for i in corpus.split("dev").column("text").to_pylist()}


def test_dev_from_train_depends_on_seed_and_texts_but_not_on_order(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(50)]
    labels = [i % 2 for i in range(50)]
    # Every text twice: both must go to the same side.
    path = parquet(tmp_path / "a.parquet", text=texts * 2, label=labels * 2)
    back = parquet(tmp_path / "b.parquet", text=texts[::-1], label=labels[::-1])
    corpus = carved(path)
    train = {corpus.texts[i] for i in corpus.split("train").column("text").to_pylist()}
    assert len(dev_texts(corpus)) == 15
    assert not train & dev_texts(corpus)
    assert corpus.split("dev").num_rows == 30
    assert dev_texts(carved(path)) == dev_texts(corpus)
    assert dev_texts(carved(back)) == dev_texts(corpus)
    assert dev_texts(carved(path, seed=1)) != dev_texts(corpus)


def test_a_dev_split_that_would_be_empty_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", text=["a", "b", "c"], label=[0, 1, 0])
    with pytest.raises(
        InputError, match=r"0.1 of 3 distinct training texts is 0, which leaves dev empty"
    ):
        carved(path, fraction=0.1)


def test_facts_name_bytes_not_paths(tmp_path: Path) -> None:
    one = write(tmp_path / "one.csv", "text,label\na,0\nb,1\n")
    two = write(tmp_path / "two.csv", one.read_bytes())
    facts = config({"train": one}).facts()
    assert facts == config({"train": two}).facts()
    assert str(tmp_path) not in canonical_json(facts).decode()
    assert facts["files"]["train"]["sha256"] == hashlib.sha256(one.read_bytes()).hexdigest()
    write(two, "text,label\na,0\nb,2\n")
    assert facts != config({"train": two}).facts()


@pytest.mark.parametrize(
    "other",
    [
        {"columns": {"text": "label", "label": "text"}},
        {"kind": "unlabelled"},
        {"dev": {"kind": "from_train", "fraction": 0.2}},
        {"dev": {"kind": "from_train", "fraction": 0.2, "seed": 1}},
    ],
)
def test_facts_change_with_every_field(tmp_path: Path, other: dict[str, Any]) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,0\nb,1\n")
    files = {"train": path}
    base = canonical_json(config(files).facts())
    assert canonical_json(config(files, **other).facts()) != base
    assert canonical_json(config({**files, "test": path}).facts()) != base
    # The same bytes under another extension are read in another way.
    renamed = write(tmp_path / "a.txt", path.read_bytes())
    assert canonical_json(config({"train": renamed}).facts()) != base


texts_strategy = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=40)
@given(texts=texts_strategy)
def test_jsonl_and_parquet_return_any_text_unchanged(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    for path in (parquet(folder / "a.parquet", text=texts), write(folder / "a.jsonl", lines)):
        corpus = config({"all": path}, "unlabelled").build()
        assert [corpus.texts[i] for i in corpus.examples.column("text").to_pylist()] == texts
        assert corpus.texts == tuple(dict.fromkeys(texts))
