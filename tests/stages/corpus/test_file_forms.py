"""Files as people have them: containers, delimiters and encodings that all give the corpus of a plain csv."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.columns import Classification
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.data_files import find_file
from permafrost.stages.corpus.search_files import SearchColumns, qrels_file, read_judgements
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.corpus.table_files import column_names, read_columns
from permafrost.stages.corpus.texts import read_texts
from permafrost.storage.errors import InputError

CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
ROWS = [
    {"text": "Schnee über Köln", "label": "cold"},
    {"text": 'a "quoted", word', "label": "warm"},
    {"text": "two\nlines; or three", "label": "cold"},
    {"text": "été à Évian", "label": "warm"},
]


def csv_of(rows: list[dict[str, str]], separator: str = ",", end: str = "\n") -> str:
    def cell(value: str) -> str:
        return '"' + value.replace('"', '""') + '"'

    return end.join(
        [separator.join(rows[0]), *(separator.join(map(cell, r.values())) for r in rows), ""]
    )


def source(path: Path, **fields: Any) -> FilesCorpus:
    files = dict.fromkeys(("train", "dev", "test"), str(path))
    made = CORPUS.validate_python(
        {"kind": "files", "files": files, "task": {"kind": "classification"}, **fields}
    )
    assert isinstance(made, FilesCorpus)
    return made


def content(corpus: Corpus) -> tuple[Any, ...]:
    return list(corpus.texts), corpus.label_names, corpus.examples.to_pylist()


def bytes_of(name: str) -> bytes:
    packed = name.endswith(".gz")
    match name.removesuffix(".gz"):
        case "x.csv":
            text = csv_of(ROWS)
        case "x.jsonl":
            text = "".join(json.dumps(row) + "\n" for row in ROWS)
        case _:
            text = json.dumps(ROWS, ensure_ascii=False, indent=1)
    return gzip.compress(text.encode()) if packed else text.encode()


CUT = gzip.compress(b'{"text": "a"}' * 99, mtime=0)[:-9]
"""Without the time, which would be in the name of a test."""


@pytest.mark.parametrize(
    "name", ["x.csv", "x.csv.gz", "x.jsonl", "x.jsonl.gz", "x.json", "x.json.gz"]
)
def test_a_corpus_is_the_same_whatever_holds_it(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({k: [r[k] for r in ROWS] for k in ROWS[0]}), tmp_path / "x.parquet")
    (tmp_path / name).write_bytes(bytes_of(name))
    expected = content(source(tmp_path / "x.parquet").build())
    assert content(source(tmp_path / name).build()) == expected
    assert list(read_texts(str(tmp_path / name))) == [row["text"] for row in ROWS]


def test_tsv_and_txt_may_be_packed_too(tmp_path: Path) -> None:
    (tmp_path / "x.tsv.gz").write_bytes(gzip.compress(b'text\tlabel\n"ice" cold\t1\nsnow\t0\n'))
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"ice\nsnow\n"))
    assert list(source(tmp_path / "x.tsv.gz").build().texts) == ['"ice" cold', "snow"]
    assert list(read_texts(str(tmp_path / "x.txt.gz"))) == ["ice", "snow"]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.json"])
def test_packing_a_file_again_changes_no_key(tmp_path: Path, name: str) -> None:
    plain = tmp_path / name
    plain.write_bytes(bytes_of(name))
    facts = source(plain).facts()
    for time in (1, 2):
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=time))
        assert source(packed).facts() == facts
    packed.write_bytes(gzip.compress(plain.read_bytes() + b"\n"))
    assert source(packed).facts() != facts


OTHER_FORMS: Mapping[str, tuple[str, dict[str, str]]] = {
    "semicolons": ("x.csv", {"delimiter": ";"}),
    "tabs in csv": ("x.csv", {"delimiter": "\t"}),
    "latin-1": ("x.csv", {"encoding": "latin-1"}),
    "utf-16": ("x.csv", {"encoding": "utf-16"}),
    "semicolons in cp1252": ("x.csv", {"delimiter": ";", "encoding": "cp1252"}),
    "latin-1 lines": ("x.jsonl", {"encoding": "latin-1"}),
    "utf-16 list": ("x.json", {"encoding": "utf-16"}),
    "packed latin-1 lines": ("x.jsonl.gz", {"encoding": "latin-1"}),
    "packed latin-1": ("x.csv.gz", {"encoding": "latin-1"}),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_a_delimiter_and_an_encoding_are_named(tmp_path: Path, form: str) -> None:
    name, fields = OTHER_FORMS[form]
    if "csv" in name:
        text = csv_of(ROWS, fields.get("delimiter", ","))
    elif "jsonl" in name:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    else:
        text = json.dumps(ROWS, ensure_ascii=False)
    encoded = text.encode(fields.get("encoding", "utf-8"))
    (tmp_path / name).write_bytes(gzip.compress(encoded) if name.endswith(".gz") else encoded)
    named = source(tmp_path / name, **fields)
    assert list(named.build().texts) == [row["text"] for row in ROWS]
    assert named.facts() != source(tmp_path / name).facts()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_marks_and_line_ends_do_not_matter(
    tmp_path: Path, end: str, mark: bytes
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(mark + csv_of(ROWS, end=end).encode())
    assert list(source(path).build().texts) == [row["text"] for row in ROWS]


def test_spellings_of_an_encoding_are_one(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(csv_of(ROWS).encode("latin-1"))
    first, second = (source(path, encoding=name) for name in ("latin-1", "ISO-8859-1"))
    assert first.facts() == second.facts()
    assert source(path, encoding="UTF8").facts() == source(path).facts()


@pytest.mark.parametrize(
    ("name", "bytes_", "fields", "says"),
    [
        ("x.xlsx", b"PK", {}, "x.xlsx is a spreadsheet, .* save the sheet as CSV"),
        ("x.arrow", b"ARROW1", {}, "x.arrow is a file of Arrow's; write it as parquet"),
        ("x.csv", b"text;label\na;b\n", {}, r"no column 'text' .*separated by ';', write 'delimiter: \";\"'"),
        ("x.csv", b"text\tlabel\na\tb\n", {},
         r"separated by '\\t', write 'delimiter: \"\\t\"' .*--delimiter '\\t'"),
        ("x.tsv", b"text,label\na,b\n", {}, r"no column 'text' .*write 'delimiter: \",\"'"),
        # Commas in the texts.
        ("x.csv", b"text;label\na, c;b\n", {}, r"Expected 1 columns, got 2.* separated by ';'"),
        ("x.csv", "text,label\né,b\n".encode("latin-1"), {},
         "row 1 of .*not valid UTF-8.*'encoding: cp1252' .*--encoding cp1252"),
        ("x.csv", "é,text\na,b\n".encode("latin-1"), {}, "cannot be read as .csv.*'encoding: cp1252'"),
        ("x.csv", "text,label\na,b\n".encode("utf-16"), {}, "name its encoding, such as 'encoding: utf-16'"),
        ("x.jsonl", '{"text": "a"}'.encode("utf-16"), {}, "'encoding: utf-16'"),
        ("x.json", b'{"text": "a"}\n{"text": "b"}\n', {},
         "is not JSON .*one object per line is called .jsonl"),
        ("x.json", b'{"data": []}', {}, "holds a JSON dict; .* one list of objects"),
        ("x.json", b"[]", {}, "has no rows"),
        ("x.json", b'[{"text": "a", "label": 1}, 3]', {}, "row 2 of .* is 3"),
        ("x.csv.gz", b"text,label\na,b\n", {}, r"cannot be read as \.csv\.gz"),
        ("x.jsonl.gz", CUT, {}, r"cannot be read as \.jsonl\.gz"),
        ("x.jsonl", b'{"text": "a", "label": 1}\n', {"delimiter": ";"}, "is jsonl, which has none"),
        ("x.csv", b"text,label\n\xff,b\n", {"encoding": "ascii"},
         r"cannot be read as \.csv.*'encoding: utf-8'"),
    ],
)  # fmt: skip
def test_what_is_not_what_it_says_is_refused(
    tmp_path: Path, name: str, bytes_: bytes, fields: dict[str, str], says: str
) -> None:
    (tmp_path / name).write_bytes(bytes_)
    made = source(tmp_path / name, **fields)
    with pytest.raises(InputError, match=says):
        content(made.build())


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["01", "1", "2", "02"], ("01", "02", "1", "2")),
        (["1", " 1", "2", "1"], ("1", "2")),
        (["01", "02", "01", "02"], ("1", "2")),
        (["10", "9", "10", "9"], ("9", "10")),
        (["0e1", "0e2", "0e1", "0e2"], ("0e1", "0e2")),
        (["1e2", "100", "7", "7"], ("100", "1e2", "7")),
        (["1.0", "1", " 1.00", "2.0"], ("1", "2")),
    ],
)
def test_labels_that_differ_as_text_are_not_read_as_one_number(
    tmp_path: Path, labels: list[str], names: tuple[str, ...]
) -> None:
    rows = "".join(f"t{i},{label}\n" for i, label in enumerate(labels))
    (tmp_path / "x.csv").write_text(f"text,label\n{rows}")
    assert source(tmp_path / "x.csv").build().label_names == names


@pytest.mark.parametrize(
    ("train", "test", "names"),
    [
        ("true,false,mixed", "true,false", ("false", "mixed", "true")),
        ("1,2,2a", "1, 2", ("1", "2", "2a")),
        ("01,1,2", "1,2", ("01", "1", "2")),
        ("1,2,10", "10,2", ("1", "2", "10")),
        ("NA,EU", "NA,NA", ("EU", "NA")),
        ("1,2", "1.0,2.0", ("1", "2")),
    ],
)
def test_classes_of_csv_are_text_in_all_files_if_they_are_in_one(
    tmp_path: Path, train: str, test: str, names: tuple[str, ...]
) -> None:
    for split, labels in (("train", train), ("test", test)):
        rows = [f"{split} {i},{label}\n" for i, label in enumerate(labels.split(","))]
        (tmp_path / f"{split}.csv").write_text("".join(["text,label\n", *rows]))
        for i, row in enumerate(rows):
            (tmp_path / f"{split}-{i}.csv").write_text(f"text,label\n{row}")
    found = [
        source(tmp_path / "train.csv", files={s: str(tmp_path / of) for s, of in files.items()})
        for files in (
            {"train": "train.csv", "test": "test.csv"},
            {"train": "train-*.csv", "test": "test-*.csv"},
        )
    ]
    assert found[0].build().label_names == names
    assert content(found[1].build()) == content(found[0].build())


def test_labels_of_two_files_are_not_merged_into_one_number(tmp_path: Path) -> None:
    """Each file by itself has numbers, and nothing says that 01 of one is 1 of the other."""
    for split, labels in (("train", ["1", "2"]), ("test", ["01", "2"])):
        rows = [f"{split} {i},{label}\n" for i, label in enumerate(labels)]
        (tmp_path / f"{split}.csv").write_text("".join(["text,label\n", *rows]))
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "test")}
    with pytest.raises(InputError, match=r"label '01' .*never occurs in train.*'1', '2'"):
        source(tmp_path / "train.csv", files=files).build()
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,2\nc,01\n")
    assert source(tmp_path / "train.csv", files=files).build().label_names == ("01", "1", "2")
    table = pa.table({"text": ["a", "b"], "label": [1, 2]})
    pq.write_table(table, tmp_path / "train.parquet")
    (tmp_path / "test.csv").write_text("text,label\nc,1\nd,2\n")
    typed = {"train": str(tmp_path / "train.parquet"), "test": str(tmp_path / "test.csv")}
    assert source(tmp_path / "train.csv", files=typed).build().label_names == ("1", "2")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_label_that_is_no_utf8_names_its_row(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        labels = pa.array([b"x", b"caf\xe9"], pa.binary()).view(pa.string())
        pq.write_table(pa.table({"text": ["a", "b"], "label": labels}), path)
    elif suffix == ".csv":
        path.write_bytes(b"text,label\na,x\nb,caf\xe9\n")
    else:
        path.write_bytes(b'{"text": "a", "label": "x"}\n{"text": "b", "label": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"row 2 of .*'label', is not valid UTF-8.*cp1252"):
        source(path).build()


def test_binary_text_that_is_no_utf8_names_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"row 3 of .*not valid UTF-8"):
        source(tmp_path / "a.txt", task={"kind": "unlabelled"}).build()


def test_an_encoding_of_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is parquet, whose text is UTF-8"):
        source(tmp_path / "x.parquet", encoding="latin-1").build()


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding": "utf-7x"},
        {"encoding": "hex"},
        {"delimiter": ""},
        {"delimiter": '"'},
        {"delimiter": "·"},
    ],
)
def test_no_other_delimiters_and_encodings(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        source(Path("x.csv"), **fields)


def test_further_files_of_a_folder_do_not_take_the_place_of_those_that_were_read(
    tmp_path: Path,
) -> None:
    for name in ("train.csv", "train.csv.gz", "train.json"):
        (tmp_path / name).write_bytes(b"text,label\na,b\n")
    assert find_file(tmp_path, ["train"], "train").name == "train.csv"
    (tmp_path / "train.csv").unlink()
    with pytest.raises(InputError, match=r"several files for train: train.json, train.csv.gz"):
        find_file(tmp_path, ["train"], "train")
    (tmp_path / "train.json").unlink()
    assert find_file(tmp_path, ["train"], "train").name == "train.csv.gz"
    for number in (0, 1):
        (tmp_path / f"dev-0000{number}-of-00002.jsonl.gz").write_bytes(
            gzip.compress(b'{"text": "a"}\n')
        )
    shards = find_file(tmp_path, ["dev"], "dev")
    assert list(read_texts(str(shards))) == ["a", "a"]


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.json", "x.txt"])
def test_the_extension_of_a_packed_file_may_be_in_capitals(tmp_path: Path, name: str) -> None:
    content = {
        "x.csv": csv_of([{"text": "snow"}]),
        "x.jsonl": lines_of({"text": "snow"}),
        "x.json": '[{"text": "snow"}]',
    }.get(name, "text\nsnow\n")
    path = tmp_path / f"{name}.GZ"
    path.write_bytes(gzip.compress(content.encode()))
    assert list(read_texts(str(path)))[-1:] == ["snow"]


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore\n", ""])
def test_judgements_in_several_files_of_text_are_read(tmp_path: Path, header: str) -> None:
    (tmp_path / "qrels").mkdir()
    for part in (0, 1):
        rows = f"{header}q{part}\td1\t{part}\nr{part}\td1\t2\n"
        (tmp_path / "qrels" / f"test-0000{part}-of-00002.tsv").write_text(rows)
    path = qrels_file(str(tmp_path), "qrels/test")
    table, names = read_judgements(SearchColumns(path=str(tmp_path)), path)
    assert [tuple(row.values()) for row in table.select(list(names)).to_pylist()] == [
        ("q0", "d1", 0), ("r0", "d1", 2), ("q1", "d1", 1), ("r1", "d1", 2)
    ]  # fmt: skip


def test_packed_judgements_are_read(tmp_path: Path) -> None:
    rows = "query-id\tcorpus-id\tscore\nq1\td1\t1\n"
    path = tmp_path / "qrels.tsv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    table, names = read_judgements(SearchColumns(path=str(tmp_path)), path)
    assert table.select(list(names)).to_pylist() == [
        {"query-id": "q1", "corpus-id": "d1", "score": 1}
    ]


CELL = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), min_size=1, max_size=8)


@given(
    cells=st.lists(CELL.filter(str.strip), min_size=1, max_size=4),
    separator=st.sampled_from([",", ";", "|", "\t"]),
    encoding=st.sampled_from(["utf-8", "latin-1", "utf-16"]),
    packed=st.booleans(),
)
@settings(max_examples=20)
def test_any_cells_in_any_form_are_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    cells: list[str],
    separator: str,
    encoding: str,
    packed: bool,
) -> None:
    rows = [{"text": cell, "label": "a"} for cell in cells]
    encoded = csv_of(rows, separator).encode(encoding)
    path = tmp_path_factory.mktemp("fuzz") / ("x.csv.gz" if packed else "x.csv")
    path.write_bytes(gzip.compress(encoded) if packed else encoded)
    (read,) = FilesCorpus(
        files={"train": str(path), "dev": str(path), "test": str(path)},
        task=Classification(),
        delimiter=separator,
        encoding=encoding,
    ).rows()[:1]
    assert read.text.to_pylist() == cells


def lines_of(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_columns_of_json_are_the_fields_of_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(lines_of({"a": "x"}, {"a": None, "b": [1]}, {"c": 2, "a": "y", "d": None}))
    assert column_names(path) == ["a", "b", "c", "d"]
    table = read_columns(path, ["a"], ["c", "d"], lists=["b"])
    assert table.to_pylist() == [
        {"a": "x", "b": None, "c": None, "d": None},
        {"a": None, "b": [1.0], "c": None, "d": None},
        {"a": "y", "b": None, "c": 2.0, "d": None},
    ]
    with pytest.raises(InputError, match=r"no column 'e'.*'a', 'b', 'c', 'd'"):
        read_columns(path, ["a", "e"], [])
    path.write_text(lines_of({"a": "x"}, {"a": "y", "c": [1]}))
    with pytest.raises(InputError, match=r"row 2 of .* column 'c' is \[1\]"):
        read_columns(path, ["a"], ["c"])


def test_a_field_may_be_in_the_rows_of_one_file_of_several(tmp_path: Path) -> None:
    (tmp_path / "x-0.jsonl").write_text(lines_of({"a": "x"}))
    (tmp_path / "x-1.jsonl").write_text(lines_of({"a": "y", "b": 1, "l": ["z"]}))
    path = tmp_path / "x-*.jsonl"
    assert column_names(path) == ["a", "b", "l"]
    table = read_columns(path, ["a"], ["b"], lists=["l"])
    assert table.to_pylist() == [{"a": "x", "b": None, "l": None}, {"a": "y", "b": 1.0, "l": ["z"]}]


def test_relevances_beside_lists_of_documents_count_whichever_row_has_them(tmp_path: Path) -> None:
    columns, path = SearchColumns(path=str(tmp_path)), tmp_path / "qrels.jsonl"
    rows = [
        {"query-id": "q", "corpus-ids": ["d1"]},
        {"query-id": "r", "corpus-ids": ["d1"], "score": [0]},
    ]
    path.write_text(lines_of({**rows[0], "score": [2]}, rows[1]))
    assert read_judgements(columns, path)[0].column("relevance").to_pylist() == [2, 0]
    path.write_text(lines_of(*rows))
    with pytest.raises(
        InputError, match=r"row 1 of .* 1 elements in column 'corpus-ids' and 0 in 'score'"
    ):
        read_judgements(columns, path)
