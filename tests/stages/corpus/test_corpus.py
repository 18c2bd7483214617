"""The corpus object: saving, loading, splits."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.corpus.corpus import EXAMPLES, WITH_NEGATIVES, Corpus
from permafrost.stages.corpus.sources.dilution import DilutionCorpus
from permafrost.storage.errors import CorruptDataError, NotFoundError


@pytest.fixture
def corpus() -> Corpus:
    return DilutionCorpus(ratio=0.5, n_words=20, n_train=6, n_dev=4, n_test=2).build()


def test_a_saved_corpus_loads_equal(corpus: Corpus, tmp_path: Path) -> None:
    corpus.save(tmp_path)
    loaded = Corpus.load(tmp_path)
    assert loaded == corpus
    assert loaded.examples.schema.equals(EXAMPLES)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"texts.parquet", "examples.parquet", "corpus.json"}
    assert pq.read_table(tmp_path / "texts.parquet").column_names == ["digest", "text"]


def test_a_corpus_in_memory_is_its_text_and_few_bytes_more(tmp_path: Path) -> None:
    task = DilutionCorpus(ratio=0.5, n_words=60, n_train=1000, n_dev=10, n_test=10)
    task.build().save(tmp_path)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        loaded = Corpus.load(tmp_path)
        of_python, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    n_texts = len(loaded.texts)
    n_bytes = sum(len(text.encode()) for text in loaded.texts)
    grown = pa.total_allocated_bytes() - before
    # 8 for its place, 72 for its digest, and the columns of its example; Arrow's buffers are padded.
    assert grown < 1.1 * (n_bytes + 130 * n_texts) + 65536
    assert of_python < 20 * n_texts, "no string of Python's for any text"


def test_equal_corpora_save_equal_bytes(corpus: Corpus, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        corpus.save(tmp_path / name)
    for file in ("texts.parquet", "examples.parquet", "corpus.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_split_holds_its_examples_and_an_unknown_one_names_the_others(corpus: Corpus) -> None:
    assert corpus.splits == ("train", "dev", "test")
    assert corpus.split("dev").column("split").to_pylist() == ["dev"] * 4
    with pytest.raises(
        NotFoundError, match="no split 'validation'; its splits are train, dev, test"
    ):
        corpus.split("validation")


def test_a_text_is_found_by_the_row_of_its_file() -> None:
    columns = {
        "split": ["train", "dev", "train", "test", "test"],
        "text": [0, 1, 2, 3, 4],
        "text_pair": [0, 5, 2, 3, 1],
        "label": [None] * 5,
        "negatives": [[], [6], [7, 8], [], [9]],
    }
    corpus = Corpus([*"abcdefghijk"], pa.table(columns, WITH_NEGATIVES), "unlabelled", (), [])
    read_from = {"train": "train", "dev": "train", "test": "test"}
    found = [corpus.row_of(text, read_from) for text in (0, 1, 8, 3, 9, 10)]
    of_train = [f"row {row} of train" for row in (1, 2, 3)]
    assert found == [*of_train, "row 1 of test", "row 2 of test", None]
    assert corpus.row_of(3, {"train": "train"}) is None


@pytest.mark.parametrize("file", ["texts.parquet", "examples.parquet", "corpus.json"])
def test_a_broken_or_missing_file_is_corruption(corpus: Corpus, tmp_path: Path, file: str) -> None:
    corpus.save(tmp_path)
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:-10])
    with pytest.raises(CorruptDataError, match="delete the artifact"):
        Corpus.load(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(CorruptDataError, match="no corpus of format 1"):
        Corpus.load(tmp_path)


def test_another_format_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    corpus.save(tmp_path)
    head = tmp_path / "corpus.json"
    head.write_text(head.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CorruptDataError, match="format 2"):
        Corpus.load(tmp_path)
