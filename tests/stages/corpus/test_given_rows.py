"""What a user's own source gives is checked, by class, split and row, before a corpus is made of it."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from permafrost.stages import plugins
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.storage.errors import InputError
from tests.documents import snippet

SOURCE = snippet("a source of your own")


@pytest.fixture(autouse=True)
def no_plugins_stay() -> Iterator[None]:
    yield
    plugins.use_files([])


def built(folder: Path, written: str = "", instead: str = "") -> Corpus:
    """The corpus of the documented source, with something else in its code."""
    assert written in SOURCE
    path = folder / "weather.py"
    path.write_text(SOURCE.replace(written, instead) if written else SOURCE)
    plugins.use_files([path])
    return CORPUS_SOURCES.validate({"kind": "weather", "n": 6}).build()


def test_the_documented_source_gives_a_corpus(tmp_path: Path) -> None:
    corpus = built(tmp_path)
    assert corpus.splits == ("train", "dev", "test")
    assert (corpus.task, corpus.label_names) == ("classification", ("snow", "sun"))
    assert corpus.split("dev").column("label").to_pylist() == [0.0, 1.0] * 3
    assert list(corpus.texts)[1] == "sun number 1 of train"


def test_text_of_another_type_of_pyarrow_is_text(tmp_path: Path) -> None:
    narrow = built(
        tmp_path, "pa.large_string()", 'pa.string() if name == "dev" else pa.large_string()'
    )
    assert narrow == built(tmp_path)
    assert (
        built(tmp_path, "pa.chunked_array([texts], pa.large_string())", "pa.array(texts)") == narrow
    )
    assert built(tmp_path, '("snow", "sun"),\n', '["snow", "sun"],\n') == narrow
    assert narrow.examples.schema.field("label").type == pa.float64()


LABEL = "pa.chunked_array([labels], pa.int64())"
TEXT = "pa.chunked_array([texts], pa.large_string())"


@pytest.mark.parametrize(
    ("written", "instead", "told"),
    [
        (
            LABEL,
            "pa.array(labels[1:])",
            r"split 'train': there are 6 texts and 5 values of label; give",
        ),
        ("text_pair=None", "text_pair=pa.array(texts[:2])", r"6 texts and 2 values of text_pair"),
        (LABEL, "None", r"label is missing, and .* of kind 'classification', which has it"),
        (
            LABEL,
            "pa.array([None, *labels[1:]])",
            r"row 1 of the train split .* \(Weather.rows, .* no label \(1 such of 6",
        ),
        (LABEL, "labels", r"label is list, expected a column of pyarrow, .* pa.int64\(\)"),
        (TEXT, "texts", r"text is list, expected a column of pyarrow, .* pa.large_string\(\)"),
        (
            TEXT,
            'pa.array([*texts[:-1], " "])',
            r"\(Weather.rows, split 'train'\) has the blank text ' '",
        ),
        (
            TEXT,
            "pa.array([*texts[:-1], None])",
            r"row 6 of the train split of the weather .* has no text",
        ),
        (TEXT, "pa.array(labels)", r"holds int64, expected text"),
        (
            "return SplitRows(",
            "return dict(",
            r"gave dict where a split belongs; return a list of Spl",
        ),
        (
            '("train", "dev", "test")]',
            '("train",)][0]',
            r"Weather.rows gave SplitRows; return a list",
        ),
        (
            'return [self._split(name) for name in ("train", "dev", "test")]',
            "return []",
            "gave no split",
        ),
        ("split=name", 'split="dev"', r"Weather.rows: the split 'dev' is given twice; name each"),
        ("split=name", "split=3", r"the split 3 is no text"),
        (
            '("snow", "sun"),\n',
            "(1, 2),\n",
            r"class_names is \(1, 2\); give the name of each class",
        ),
        (
            'class_names=("snow", "sun")',
            'class_names="snow"',
            r"class_names is 'snow'; give the name",
        ),
        (
            "text_pair=None",
            'text_pair=None, negatives="x"',
            r"negatives is str, expected Negatives",
        ),
        ("Classification", "Similarity", r"text_pair is missing, and .* of kind 'similarity'"),
    ],
)
def test_what_a_source_gives_is_checked_by_split_and_row(
    tmp_path: Path, written: str, instead: str, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        built(tmp_path, written, instead)
