"""How two corpora differ, counted on hashes."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from permafrost.flows.why.changed_fields import Leaf
from permafrost.flows.why.changed_sources import source_changes
from permafrost.flows.why.changed_texts import CorpusParts, compare_texts
from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.storage.keys import text_digest
from permafrost.storage.texts import Texts

LETTERS = [f"text {c}" for c in "abcdefgh"]


def corpus(texts: Sequence[str], labels: Sequence[float] | None = None) -> Corpus:
    given = [float(i % 2) for i in range(len(texts))] if labels is None else labels
    columns = {
        "split": ["train"] * len(texts),
        "text": range(len(texts)),
        "text_pair": [None] * len(texts),
        "label": given,
    }
    examples = pa.table({n: pa.array(v, EXAMPLES.field(n).type) for n, v in columns.items()})
    digests = Texts.of([text_digest(t) for t in texts])
    return Corpus(Texts.of(texts), examples.cast(EXAMPLES), "classification", ("x", "y"), digests)


def parts(texts: Sequence[str], labels: Sequence[float] | None = None) -> CorpusParts:
    made = corpus(texts, labels)
    return CorpusParts.of((made.digests,), made.examples)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (LETTERS, ""),
        ([*LETTERS, "one", "two"], "2 texts new"),
        (["first", *LETTERS], "1 text new"),
        (LETTERS[:-3], "3 texts gone"),
        (LETTERS[1:], "1 text gone"),
        ([*LETTERS[:3], "else", *LETTERS[4:]], "1 text changed"),
        (["else", *LETTERS[1:6], "one", "two", "three"], "1 text new, 3 changed"),
        ([*LETTERS[:2], "b1", "b2", *LETTERS[4:-1], LETTERS[-1], "end"], "1 text new, 2 changed"),
        (LETTERS[::-1], ""),
        (["all", "other"], "6 texts gone, 2 changed"),
    ],
)
def test_texts_that_came_went_and_were_replaced(new: list[str], said: str) -> None:
    labels = {t: float(i % 2) for i, t in enumerate(LETTERS)}
    given = [labels.get(t, 0.0) for t in new]
    assert str(compare_texts(parts(LETTERS), parts(new, given))) == said


def test_labels_are_compared_by_the_names_of_their_classes() -> None:
    def named(labels: Sequence[float], *classes: str) -> CorpusParts:
        made = corpus(LETTERS[: len(labels)], labels)
        return CorpusParts.of((made.digests,), made.examples, classes)

    old = named([0, 1, 1, 0], "bad", "good")
    assert str(compare_texts(old, named([0, 2, 2, 0], "bad", "fair", "good"))) == ""
    assert str(compare_texts(old, named([1, 0, 0, 1], "good", "bad"))) == ""
    assert str(compare_texts(old, named([0, 1, 1, 0], "bad", "fine"))) == "2 labels changed"
    assert str(compare_texts(old, named([0, 1, 2, 0], "bad", "fair", "good"))) == "1 label changed"
    unlabelled = named([0, np.nan, 1, 0], "bad", "good")
    assert str(compare_texts(old, unlabelled)) == "1 label changed"
    assert str(compare_texts(unlabelled, unlabelled)) == ""


def test_labels_that_changed_are_counted_on_examples_of_both() -> None:
    old = parts(LETTERS, [0, 0, 0, 0, np.nan, 1, 1, 1])
    new = parts([*LETTERS[1:], "more"], [1, 0, 0, np.nan, 0, 1, 1, 0])
    counts = compare_texts(old, new)
    assert str(counts) == "1 text new, 1 gone, 2 labels changed"
    assert vars(counts) == {"new": 1, "gone": 1, "changed": 0, "relabelled": 2}


def test_stored_corpora_are_read_and_lost_ones_are_none(tmp_path: Path) -> None:
    made = corpus(LETTERS)
    made.save(tmp_path)
    stored = CorpusParts.stored(tmp_path)
    assert stored is not None
    assert str(compare_texts(stored, parts([*LETTERS, "one"]))) == "1 text new"
    (tmp_path / "texts.parquet").write_bytes(b"damaged")
    assert CorpusParts.stored(tmp_path) is None
    assert CorpusParts.stored(tmp_path / "gone") is None


def test_files_are_named_as_the_yaml_does(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text\n")
    section = {
        "files": {"train": str(path), "dev": "data/dev.csv"},
        "nodes": "n.csv",
        "path": "org/name",
    }

    def said(*paths: str, known: bool = True) -> str:
        leaves = [Leaf(p, "0" * 64, "1" * 64) for p in paths]
        both = [parts(LETTERS), parts([*LETTERS, "one"])] if known else [None, parts(LETTERS)]
        (change,) = source_changes("lakes", leaves, (section, section), both, None)
        return change.text

    assert said("files.train.sha256") == "lakes: train.csv: 1 text new"
    assert said("files.train.sha256", "files.dev.sha256") == "lakes: train.csv, dev.csv: 1 text new"
    assert said("files.nodes.sha256") == "lakes: n.csv: 1 text new"
    assert said("source.commit") == "lakes: name: 1 text new"
    assert said("qrels.test.sha256") == "lakes: qrels.test: 1 text new"
    assert said("files.train.sha256", known=False).startswith(
        "lakes: train.csv changed (5 bytes of "
    )


@pytest.mark.deep
def test_a_million_texts_are_compared_in_bounded_memory() -> None:
    n = 1_000_000
    digests = Texts(pa.array(np.char.mod("%064x", np.arange(n + 50)).tolist(), pa.large_string()))
    split = pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), ["train"]).cast(pa.string())

    def examples(size: int) -> pa.Table:
        columns = [split.slice(0, size), pa.array(np.arange(size)), pa.nulls(size, pa.int64())]
        columns.append(pa.array(np.zeros(size)))
        return pa.table(columns, names=["split", "text", "text_pair", "label"])

    # The distinguishing digits come first, as those of a digest do.
    reverse = Texts(pa.array([d[::-1] for d in digests], pa.large_string()))
    tracemalloc.start()
    before, arrow = pa.total_allocated_bytes(), pa.default_memory_pool()
    old = CorpusParts.of((reverse[:n],), examples(n))
    new = CorpusParts.of((reverse[50:],), examples(n))
    counts = compare_texts(old, new)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (counts.new, counts.gone, counts.changed) == (50, 50, 0)
    assert peak + arrow.max_memory() - before < 400e6
    assert peak < 150e6
