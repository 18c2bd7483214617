"""Texts in Arrow read like a tuple of strings and are smaller."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from permafrost.storage.texts import Texts, each_once, numbered

WORDS = ["snow", "ice", "Schnee über Eis", "氷", "snow again"]


def test_they_read_like_a_tuple() -> None:
    texts = Texts.of(WORDS)
    assert (len(texts), texts[0], texts[-1], texts[np.int64(3)]) == (5, "snow", "snow again", "氷")
    assert list(texts) == WORDS
    assert texts == tuple(WORDS)
    assert texts != [*WORDS, "more"]
    assert texts == Texts.of(tuple(WORDS))
    assert texts[1:3] == WORDS[1:3]
    assert isinstance(texts[1:3], Texts)
    assert texts.index("氷") == 3
    assert "fire" not in texts
    with pytest.raises(IndexError):
        texts[5]


def test_more_than_are_strings_at_a_time_come_in_order() -> None:
    many = [f"text {i}" for i in range(10_000)]
    texts = Texts(pa.chunked_array([many[:7000], many[7000:]]))
    assert list(texts) == many
    assert texts.map(str.upper) == [t.upper() for t in many]


def test_arrow_gets_the_very_memory() -> None:
    texts = Texts.of(WORDS)
    assert Texts.of(texts) is texts
    given = pa.array(texts, pa.large_string())
    assert given.buffers()[2].address == pa.array(texts[1:]).buffers()[2].address
    assert pa.array(texts, pa.string()).to_pylist() == WORDS


def test_going_through_them_keeps_no_strings() -> None:
    texts = Texts.of([f"{i:0200d}" for i in range(20_000)])
    tracemalloc.start()
    try:
        assert sum(map(len, texts)) == 4_000_000
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000
    assert peak < 2_000_000, "20,000 strings of 200 characters take 5 MB"


def test_texts_of_several_corpora_come_once_in_order_of_appearance() -> None:
    corpora = [["ice", "snow", "ice"], ["lake"], ["snow", "氷", "lake"]]
    digests = [[f"digest of {t}" for t in texts] for texts in corpora]
    texts, found = each_once(corpora, digests)
    assert texts == ["ice", "snow", "lake", "氷"]
    assert found == [f"digest of {t}" for t in texts]
    assert isinstance(texts, Texts)
    assert isinstance(found, Texts)


def test_texts_are_numbered_in_order_of_appearance() -> None:
    assert numbered(["ice", "snow", "ice", "lake", "snow"]).tolist() == [0, 1, 0, 2, 1]
    assert numbered(Texts.of(WORDS)[1:]).tolist() == [0, 1, 2, 3]
