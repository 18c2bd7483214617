"""Cosines against graded labels; scipy is the reference."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from scipy.spatial.distance import cosine as cosine_distance

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.scoring.similarity import SimilarityConfig, score_pairs
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest

N_TEXTS = 40


def make_corpus(
    pairs: dict[str, list[tuple[int, int, float]]], task: TaskKind = "similarity"
) -> Corpus:
    texts = tuple(f"sentence number {i}" for i in range(N_TEXTS))
    rows = [
        {"split": split, "text": a, "text_pair": b, "label": label}
        for split, found in pairs.items()
        for a, b, label in found
    ]
    columns = {name: [row[name] for row in rows] for name in EXAMPLES.names}
    digests = tuple(map(text_digest, texts))
    return Corpus(texts, pa.table(columns, schema=EXAMPLES), task, (), digests)


def some_pairs(seed: int, n: int = 30) -> list[tuple[int, int, float]]:
    rng = np.random.default_rng(seed)
    ab = rng.integers(0, N_TEXTS, (n, 2))
    # Grades as people give them: few values, many ties.
    return [(int(a), int(b), float(g)) for (a, b), g in zip(ab, rng.integers(0, 6, n), strict=True)]


def some_vectors(seed: int = 0, d: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N_TEXTS, d)).astype(np.float32)


def reference(
    vectors: np.ndarray, pairs: list[tuple[int, int, float]]
) -> tuple[list[float], Any, Any]:
    wide = vectors.astype(np.float64)
    cosines = [1 - float(cosine_distance(wide[a], wide[b])) for a, b, _ in pairs]
    labels = [label for *_, label in pairs]
    return (
        cosines,
        stats.spearmanr(np.round(cosines, 12), labels)[0],
        stats.pearsonr(cosines, labels)[0],
    )


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_both_correlations_of_every_split_are_those_of_scipy(metric: Any) -> None:
    pairs = {"train": some_pairs(1), "dev": some_pairs(2), "test": some_pairs(3, n=37)}
    vectors = some_vectors()
    result = score_pairs(SimilarityConfig(metric=metric), vectors, make_corpus(pairs))
    for split in ("dev", "test"):
        cosines, rank, linear = reference(vectors, pairs[split])
        # Both sides are float64 sums over 24 and 37 terms: some 1e-15 of rounding.
        assert result.metrics[f"{split}_spearman"] == pytest.approx(rank, abs=1e-12)
        assert result.metrics[f"{split}_pearson"] == pytest.approx(linear, abs=1e-12)
        assert result.metrics[split] == result.metrics[f"{split}_{metric}"]
        rows = [r for r in result.predictions.to_pylist() if r["split"] == split]
        assert [(r["text"], r["text_b"], r["label"]) for r in rows] == pairs[split]
        np.testing.assert_allclose([r["prediction"] for r in rows], cosines, atol=1e-12)
    assert result.metrics["metric"] == metric
    assert (result.metrics["n_dev"], result.metrics["n_test"]) == (30, 37)
    assert set(result.predictions.column("split").to_pylist()) == {"dev", "test"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=40).filter(
        lambda pairs: all(len({p[i] for p in pairs}) > 1 for i in (0, 1))
    )
)
def test_ties_share_their_mean_rank_as_in_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b)[0], abs=1e-12)
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b)[0], abs=1e-12)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_scale_of_labels_plays_no_role(scale: float) -> None:
    a, b = np.array([1.0, 2.0, 4.0, 3.0]), np.array([0.1, 0.4, 0.3, 0.9])
    # Scaling rounds every label once.
    assert pearson(a, scale * b) == pytest.approx(stats.pearsonr(a, b)[0], abs=1e-12)


def test_a_perfect_order_is_exactly_one_however_cosines_are_spaced() -> None:
    vectors = np.zeros((N_TEXTS, 2), dtype=np.float32)
    angles = 1.5 * np.linspace(0, 1, N_TEXTS) ** 3
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    pairs = [(0, i, float(-i)) for i in range(N_TEXTS)]
    metrics = score_pairs(SimilarityConfig(), vectors, make_corpus({"test": pairs})).metrics
    assert metrics["test"] == pytest.approx(1, abs=1e-12)
    assert metrics["test_pearson"] < 0.99


def test_texts_equal_to_themselves_all_share_the_cosine_one() -> None:
    vectors = some_vectors(5) * np.float32(3e4)
    pairs = [(i, i, 5.0) for i in range(30)] + [(30, 31, 1.0)]
    result = score_pairs(SimilarityConfig(), vectors, make_corpus({"test": pairs}))
    assert result.predictions.column("prediction").to_pylist()[:30] == [1.0] * 30
    assert result.metrics["test"] == pytest.approx(1, abs=1e-12)


def test_length_of_vectors_and_order_of_a_pair_play_no_role() -> None:
    pairs = some_pairs(4)
    swapped = [(b, a, label) for a, b, label in pairs]
    vectors = some_vectors()
    longer = vectors * np.linspace(1e-15, 1e15, N_TEXTS, dtype=np.float32)[:, None]
    config = SimilarityConfig()
    first = score_pairs(config, vectors, make_corpus({"test": pairs}))
    second = score_pairs(config, longer, make_corpus({"test": swapped}))
    # Scaling rounds every float32 component: 6e-8 relative.
    np.testing.assert_allclose(
        first.predictions.column("prediction").to_numpy(),
        second.predictions.column("prediction").to_numpy(),
        atol=3e-7,
    )


def test_many_pairs_are_scored_as_few_are() -> None:
    pairs = some_pairs(6, n=2500)
    vectors = some_vectors()
    result = score_pairs(SimilarityConfig(), vectors, make_corpus({"test": pairs}))
    cosines, rank, _ = reference(vectors, pairs)
    np.testing.assert_allclose(
        result.predictions.column("prediction").to_numpy(), cosines, atol=1e-12
    )
    # Pairs that occur twice tie exactly with us; scipy's distance needs the rounding of `reference`.
    assert result.metrics["test"] == pytest.approx(rank, abs=1e-12)


@pytest.mark.parametrize(("here", "absent"), [("dev", "test"), ("test", "dev")])
def test_a_split_that_is_absent_is_null(here: str, absent: str) -> None:
    metrics = score_pairs(
        SimilarityConfig(), some_vectors(), make_corpus({here: some_pairs(1)})
    ).metrics
    assert [metrics[absent + end] for end in ("", "_spearman", "_pearson")] == [None] * 3
    assert metrics[f"n_{absent}"] == 0
    assert metrics[here] is not None


def test_saved_results_are_what_a_report_reads(tmp_path: Path) -> None:
    corpus = make_corpus({"test": some_pairs(1)})
    result = score_pairs(
        SimilarityConfig(), some_vectors(), corpus, choice={"layer": 3}, n_parameters=7
    )
    result.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text()) == result.metrics
    assert pq.read_table(tmp_path / "predictions.parquet").equals(result.predictions)
    (read,) = read_results([Cell("va", "sts", 0, "method", tmp_path, None, "score/0")])
    assert read.metrics.test == result.metrics["test"]
    assert read.metrics.dev is None
    assert (read.metrics.choice, read.metrics.n_parameters) == ({"layer": 3}, 7)


@pytest.mark.parametrize(
    ("value", "word"), [(0.0, "zero"), (np.nan, "not finite"), (np.inf, "not")]
)
def test_a_vector_without_a_direction_is_refused_with_its_text(value: float, word: str) -> None:
    vectors = some_vectors()
    vectors[3] = value
    with pytest.raises(InputError, match=rf"text 3 \('sentence number 3'\) is {word}"):
        score_pairs(SimilarityConfig(), vectors, make_corpus({"test": [(1, 2, 1.0), (2, 3, 2.0)]}))


def test_a_broken_vector_that_no_pair_uses_does_no_harm() -> None:
    vectors = some_vectors()
    vectors[39] = 0
    pairs = {"train": [(39, 1, 1.0)], "test": [(1, 2, 1.0), (2, 3, 2.0)]}
    assert score_pairs(SimilarityConfig(), vectors, make_corpus(pairs)).metrics["n_test"] == 2


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_equal_cosines_are_refused(scale: float) -> None:
    # One direction in different lengths: cosines are 1 but for rounding.
    vectors = np.tile(some_vectors()[:1], (N_TEXTS, 1))
    vectors *= (1 + scale * np.arange(N_TEXTS, dtype=np.float32))[:, None]
    # Rounding to float32 turns the scaled directions by 1e-7, their cosines by its square.
    with pytest.raises(
        InputError, match=r"all cosines of the 30 test pairs are 1, .*tell texts apart"
    ):
        score_pairs(SimilarityConfig(), vectors, make_corpus({"test": some_pairs(1)}))


def test_equal_labels_and_a_single_pair_are_refused() -> None:
    equal = make_corpus({"dev": [(1, 2, 4.0), (2, 3, 4.0)]})
    with pytest.raises(InputError, match="all labels of the 2 dev pairs are 4"):
        score_pairs(SimilarityConfig(), some_vectors(), equal)
    with pytest.raises(InputError, match="all cosines of the 1 test pairs"):
        score_pairs(SimilarityConfig(), some_vectors(), make_corpus({"test": [(1, 2, 4.0)]}))


def test_what_cannot_be_scored_is_refused() -> None:
    config, vectors = SimilarityConfig(), some_vectors()
    with pytest.raises(InputError, match="39 vectors for 40 texts"):
        score_pairs(config, vectors[:-1], make_corpus({"test": some_pairs(1)}))
    with pytest.raises(InputError, match="splits train and neither dev nor test"):
        score_pairs(config, vectors, make_corpus({"train": some_pairs(1)}))
    with pytest.raises(InputError, match="the corpus is of kind 'pair_classification'"):
        score_pairs(config, vectors, make_corpus({"test": some_pairs(1)}, "pair_classification"))
    with pytest.raises(ValidationError, match="'spearman' or 'pearson'"):
        SimilarityConfig.model_validate({"metric": "kendall"})
