"""Prefixes that look for their suffixes; brute force is the reference."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from permafrost.stages.corpus.sources.segments import SegmentsCorpus
from permafrost.stages.metrics.segment_matching import (
    SegmentMatchingConfig,
    SegmentSplit,
    layer_curve,
    match,
    split_segments,
    suffix_ranks,
)
from permafrost.storage.errors import InputError


def brute_force_ranks(prefixes: np.ndarray, suffixes: np.ndarray) -> list[int]:
    """One pair at a time: 1 + the number of other suffixes that are at least as near."""

    def near(i: int, j: int) -> float:
        a, b = prefixes[i].astype(float), suffixes[j].astype(float)
        return sum(x * y for x, y in zip(a, b, strict=True)) / (
            sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5
        )

    n = len(prefixes)
    return [1 + sum(near(i, j) >= near(i, i) for j in range(n) if j != i) for i in range(n)]


def some_vectors(n: int, d: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    topic = rng.normal(size=(n, d))
    first, second = (topic + noise * rng.normal(size=(n, d)) for _ in range(2))
    return first.astype(np.float32), second.astype(np.float32)


@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
def test_ranks_and_recall_are_those_of_brute_force(noise: float) -> None:
    prefixes, suffixes = some_vectors(60, 8, noise)
    expected = brute_force_ranks(prefixes, suffixes)
    assert suffix_ranks(prefixes, suffixes).tolist() == expected
    found = match(prefixes, suffixes, k=(1, 5, 10, 60))
    for k in (1, 5, 10, 60):
        assert found[f"recall@{k}"] == sum(rank <= k for rank in expected) / 60
    # Two sums of 60 fractions, in different orders.
    assert found["mrr"] == pytest.approx(sum(1 / rank for rank in expected) / 60, abs=1e-14)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(1, 6), st.floats(0.01, 10), st.integers(0, 1000))
def test_recall_grows_with_k_and_length_of_vectors_plays_no_role(
    n: int, d: int, noise: float, seed: int
) -> None:
    prefixes, suffixes = some_vectors(n, d, noise, seed)
    found = match(prefixes, suffixes)
    assert found["recall@1"] <= found["recall@5"] <= found["recall@10"] <= 1
    assert found["recall@1"] <= found["mrr"] <= 1
    # Powers of two scale floats exactly.
    scale = 2.0 ** np.random.default_rng(seed).integers(-9, 9, (n, 1))
    assert match(prefixes * scale.astype(np.float32), suffixes) == found


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes, suffixes = some_vectors(53, 6, 1.5)
    suffixes[40:] = suffixes[:13]  # ties across blocks
    whole = suffix_ranks(prefixes, suffixes)
    for rows in (1, 7, 53):
        monkeypatch.setattr("permafrost.stages.metrics.segment_matching._ROWS_AT_A_TIME", rows)
        assert suffix_ranks(prefixes, suffixes).tolist() == whole.tolist()


def test_no_array_as_large_as_texts_times_texts_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("permafrost.stages.metrics.segment_matching._ROWS_AT_A_TIME", 16)
    sizes: list[int] = []

    class Watched(np.ndarray):
        def __array_finalize__(self, obj: object) -> None:
            sizes.append(self.size)

    prefixes, suffixes = (v.view(Watched) for v in some_vectors(200, 4, 1.0))
    suffix_ranks(prefixes, suffixes)
    assert max(sizes) <= 200 * 4  # the inputs themselves
    assert len(sizes) > 13 * 13


def test_ties_count_against_the_method() -> None:
    prefixes, suffixes = some_vectors(6, 5, 0.0)
    suffixes[1] = 4 * suffixes[0]
    # Both 0 and 1 look for one direction: 0's own is tied; 1's is another topic's, so it may rank anywhere.
    assert suffix_ranks(prefixes, suffixes)[0] == 2
    same = np.ones((6, 5), dtype=np.float32)
    assert suffix_ranks(same, same).tolist() == [6] * 6
    assert match(same, same)["recall@5"] == 0


def test_a_perfect_match_has_everything_one() -> None:
    prefixes, suffixes = some_vectors(20, 8, 0.0)
    assert set(match(prefixes, suffixes).values()) == {1.0}


def test_a_layer_curve_has_a_row_per_layer_and_reads_layers_one_by_one() -> None:
    layers = {layer: some_vectors(30, 8, noise) for layer, noise in ((2, 2.0), (4, 0.5))}
    table = layer_curve("va", ((layer, *pair) for layer, pair in layers.items()), k=(1, 3))
    assert table.column_names == ["what", "layer", "recall@1", "recall@3", "mrr"]
    assert table.to_pylist() == [
        {"what": "va", "layer": layer, **match(*pair, k=(1, 3))} for layer, pair in layers.items()
    ]
    with pytest.raises(InputError, match="'va' got 0 layers"):
        layer_curve("va", [])


def test_vectors_that_cannot_be_matched_are_refused() -> None:
    prefixes, suffixes = some_vectors(4, 3, 1.0)
    with pytest.raises(InputError, match=r"prefixes are \[4, 3\] and suffixes \[3, 3\]"):
        suffix_ranks(prefixes, suffixes[:3])
    with pytest.raises(InputError, match=r"\[1, 3\].*at least two"):
        suffix_ranks(prefixes[:1], suffixes[:1])
    for value in (0.0, np.nan, np.inf):
        broken = suffixes.copy()
        broken[2] = value
        with pytest.raises(InputError, match="vector of suffix 2 has norm"):
            suffix_ranks(prefixes, broken)
        with pytest.raises(InputError, match="vector of prefix 2 has norm"):
            suffix_ranks(broken, suffixes)


def some_texts(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(50)]
    return [" ".join(rng.choices(words, k=rng.randint(4, 24))) for _ in range(n)]


def test_texts_are_cut_before_the_word_in_the_middle_and_put_together_again() -> None:
    texts = some_texts(50)
    prefixes, suffixes = split_segments(texts, SegmentSplit(min_words=2))
    assert [f"{a} {b}" for a, b in zip(prefixes, suffixes, strict=True)] == texts
    for a, b in zip(prefixes, suffixes, strict=True):
        assert len(b.split()) - len(a.split()) in (0, 1)


def test_spaces_inside_a_half_stay_and_those_around_it_go() -> None:
    texts = ["  one\ttwo \n three  four five ", "a\u00a0b\u2003c d"]
    assert split_segments(texts, SegmentSplit(min_words=2)) == (
        ("one\ttwo", "a\u00a0b"),
        ("three  four five", "c d"),
    )


def test_short_texts_are_left_out_and_no_more_than_asked_for_are_taken() -> None:
    texts = some_texts(60)
    prefixes, suffixes = split_segments(texts, SegmentSplit(min_words=12, n_texts=10))
    assert len(prefixes) == len(suffixes) == 10
    joined = [f"{a} {b}" for a, b in zip(prefixes, suffixes, strict=True)]
    assert all(len(text.split()) >= 12 for text in joined)
    assert joined == [text for text in texts if text in joined], "not in the order of the texts"


def test_the_choice_depends_on_the_seed_and_not_on_order_or_repetition() -> None:
    texts = some_texts(60)
    chosen = set(split_segments(texts, SegmentSplit(min_words=8, n_texts=15))[0])
    again = split_segments([*texts[::-1], *texts], SegmentSplit(min_words=8, n_texts=15))[0]
    other = split_segments(texts, SegmentSplit(min_words=8, n_texts=15, seed=1))[0]
    assert set(again) == chosen
    assert len(again) == 15
    assert set(other) != chosen


def test_all_halves_differ() -> None:
    texts = ["a b c d", "a b e f", "g h c d", "i j i j", "k l m n", "c d o p", "a b c d"]
    prefixes, suffixes = split_segments(texts, SegmentSplit(min_words=4))
    assert len({*prefixes, *suffixes}) == 2 * len(prefixes)
    assert "i j" not in prefixes
    assert "k l" in prefixes


def test_fewer_than_two_texts_are_refused_with_the_numbers() -> None:
    with pytest.raises(InputError, match=r"of 3 texts 1 can be cut: .* at least 4 words"):
        split_segments(["a b c d", "a b c d", "e f"], SegmentSplit(min_words=4))


def test_wrong_configs_are_refused() -> None:
    for wrong in ({"k": ()}, {"k": (0,)}, {"n_texts": 1}, {"min_words": 1}, {"other": 1}):
        with pytest.raises(ValidationError):
            SegmentMatchingConfig.model_validate(wrong)
    assert not issubclass(SegmentsCorpus, SegmentMatchingConfig), "k is no part of a corpus"
