"""Quoted fields of csv that are not closed, or go on after they are: rows were lost without a word."""

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from permafrost.stages.corpus import csv_quotes
from permafrost.stages.corpus.csv_quotes import require_closed_quotes
from permafrost.stages.corpus.text_format import TextFormat
from permafrost.stages.corpus.texts import read_rows, read_texts
from permafrost.storage.errors import InputError

NEVER_CLOSED = 'a,text\n1,"unclosed\n2,hi\n'
CLOSED_BELOW = (
    'id,text\n1,first review\n2,"Great film\n3,third one\n4,fourth "quoted" here\n5,fifth\n'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (NEVER_CLOSED, r"quoted field that begins on line 2 of .*x\.csv is never closed"),
        (
            CLOSED_BELOW,
            "begins on line 3 .* is closed on line 5, where 'q",
        ),
        ('text\n"Great" film\n', "begins on line 2 .* closed on line 2, where ' f"),
        ('text\n""Great"" film\n', "begins on line 2 .* closed on line 2, where 'G"),
        ('text\n"a\nb"\n"c', "begins on line 4 .* never closed"),
        ('text\n"say \\"hi\\""\n', "where 'h"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_a_field_that_is_not_closed_or_goes_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str, end: str, encoding: str, block: int
) -> None:  # fmt: skip
    monkeypatch.setattr(csv_quotes, "_BLOCK_BYTES", block)
    named = encoding if encoding == "utf-16" else "utf-8"
    for name, pack in (("x.csv", bytes), ("x.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(text.replace("\n", end).encode(encoding)))
        with pytest.raises(InputError, match=says.replace(r"x\.csv", name)):
            read_rows(f"{tmp_path / name}::text", encoding=named)


def test_the_delimiter_is_the_one_of_the_file(tmp_path: Path) -> None:
    (path := tmp_path / "x.csv").write_text('text;n\n"a";1\n"b",2;1\n')
    with pytest.raises(InputError, match=r"line 3 .* where ',2;1' comes after it instead of ';'"):
        read_rows(str(path), delimiter=";")


def test_marks_that_are_part_of_the_text_are_read(tmp_path: Path) -> None:
    (path := tmp_path / "x.csv").write_text('n,text\n1,5" pipe\n2,"5"" pipe, ""new"""\n3, "a" b\n')
    assert read_texts(str(path)) == ['5" pipe', '5" pipe, "new"', ' "a" b']
    (path := tmp_path / "x.tsv").write_text('n\ttext\n1\t"open\n2\t"Great" film\n')
    assert read_texts(str(path)) == ['"open', '"Great" film']


@given(
    st.lists(st.sampled_from(['"', '"', ",", "a", "\n", "\r\n", "\r"]), max_size=14).map("".join)
)
def test_what_is_refused_is_what_strict_readers_refuse(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("x") / "x.csv"
    path.write_bytes(text.encode())
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        with pytest.raises(InputError):
            require_closed_quotes(path)
    else:
        require_closed_quotes(path, TextFormat())
