"""Anisotropy and effective dimension against sums over pairs and known clouds."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from permafrost.stages.probes.geometry import (
    GeometryConfig,
    chosen_texts,
    dimensions,
    geometry,
    probe_geometry,
)
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged, offsets_of
from tests.stages.embed.memory_features import MemoryFeatures
from tests.stages.probes.probe_features import classes, pooled

QUIET = SilentProgress()


def ragged(rows: np.ndarray, lengths: list[int]) -> Ragged:
    return Ragged(rows, offsets_of(np.array(lengths)))


def single(rows: np.ndarray) -> Ragged:
    """One vector per text."""
    return ragged(rows, [1] * len(rows))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_means_of_cosines_are_those_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    lengths = [3, 1, 0, 4, 2]
    rows = rng.normal(1, 2, (sum(lengths), 5)).astype(np.float32)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    between, inside = list[float](), list[float]()
    for i, j in combinations(range(len(rows)), 2):
        value = cosine(rows[i].astype(float), rows[j].astype(float))
        (inside if owner[i] == owner[j] else between).append(value)
    found = geometry([ragged(rows, lengths)])
    assert found.n_vectors == 10
    assert found.mean_cosine == pytest.approx(np.mean(between), abs=1e-12)
    assert found.mean_cosine_inside == pytest.approx(np.mean(inside), abs=1e-12)
    assert geometry([single(rows)]).mean_cosine_inside is None


def test_dimensions_are_those_of_the_covariances_spectrum() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)) + 3
    eigenvalues = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    shares = eigenvalues / eigenvalues.sum()
    found = geometry([single(rows)])
    assert found.participation_ratio == pytest.approx(
        eigenvalues.sum() ** 2 / np.sum(eigenvalues**2), rel=1e-9
    )
    entropy = -sum(p * np.log(p) for p in shares)
    assert found.effective_rank == pytest.approx(np.exp(entropy), rel=1e-9)


def test_how_texts_are_batched_makes_no_difference() -> None:
    rng = np.random.default_rng(2)
    rows = (1000 + rng.normal(size=(30, 4))).astype(np.float32)
    whole = geometry([ragged(rows, [10, 5, 15])])
    parts = geometry([ragged(rows[:15], [10, 5]), ragged(rows[:0], [0]), ragged(rows[15:], [15])])
    for field in ("mean_cosine", "mean_cosine_inside", "participation_ratio", "effective_rank"):
        assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=1e-9)


def test_isotropic_vectors_have_a_mean_cosine_of_about_nothing() -> None:
    """Cosines of independent directions in D dimensions have mean 0 and variance 1 / D, and no two pairs of
    them are correlated, so the mean over n (n - 1) / 2 pairs has a variance of 2 / (n (n - 1) D)."""
    n, d = 400, 50
    rows = np.random.default_rng(3).normal(size=(n, d))
    found = geometry([single(rows)])
    assert abs(found.mean_cosine) < 5 * np.sqrt(2 / (n * (n - 1) * d))
    # A sample of n spreads the spectrum (Marchenko and Pastur): D / (1 + D / n), to first order in 1 / n.
    assert found.participation_ratio == pytest.approx(d / (1 + d / n), rel=0.05)


def test_equal_vectors_are_one_direction_and_no_dimension() -> None:
    rows = np.tile(np.array([0.3, -2.0, 1e3], np.float32), (17, 1))
    found = geometry([ragged(rows, [2] * 8 + [1])])
    assert found.mean_cosine == pytest.approx(1, abs=1e-12)
    assert found.mean_cosine_inside == pytest.approx(1, abs=1e-12)
    assert (found.participation_ratio, found.effective_rank) == (0, 0)


@pytest.mark.parametrize("k", [1, 2, 7])
def test_equal_variance_in_k_directions_counts_k(k: int) -> None:
    corners = np.zeros((2 * k, 9))
    corners[np.arange(2 * k), np.arange(2 * k) % k] = np.repeat([1.0, -1.0], k)
    rotation = np.linalg.qr(np.random.default_rng(k).normal(size=(9, 9)))[0]
    found = geometry([single(5 + corners @ rotation)])
    assert found.participation_ratio == pytest.approx(k, rel=1e-9)
    assert found.effective_rank == pytest.approx(k, rel=1e-9)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_the_participation_ratio_is_the_smaller_count(variances: list[float]) -> None:
    """Renyi's entropy of order 2 is never above Shannon's, and neither above the number of directions."""
    participation, rank = dimensions(np.diag(np.array(variances)))
    n_directions = sum(v > 0 for v in variances)
    assert participation <= rank * (1 + 1e-9)
    assert rank <= n_directions * (1 + 1e-9)
    assert participation >= (1 - 1e-9) * (n_directions > 0)
    assert dimensions(7 * np.diag(np.array(variances))) == pytest.approx((participation, rank))


def test_cosines_do_not_see_lengths_and_dimensions_do_not_see_the_place() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(20, 4))
    base = geometry([single(rows)])
    longer = geometry([single(rows * rng.uniform(0.1, 9, (20, 1)))])
    assert longer.mean_cosine == pytest.approx(base.mean_cosine, abs=1e-12)
    moved = geometry([single(rows + 100)])
    assert moved.mean_cosine > 0.99
    assert moved.participation_ratio == pytest.approx(base.participation_ratio, rel=1e-6)
    assert moved.effective_rank == pytest.approx(base.effective_rank, rel=1e-6)


def test_every_layer_is_measured_on_its_vectors() -> None:
    rng = np.random.default_rng(5)
    layers = {k: rng.normal(k, 1, (12, 8)) for k in range(4)}
    corpus = classes([0, 1] * 6)
    found = probe_geometry(GeometryConfig(), [pooled(layers)], corpus, QUIET)
    assert found.axis == "layer"
    assert found.choice == {}
    for k, rows in layers.items():
        expected = geometry([single(rows.astype(np.float32))])
        mine = {p.measure: p.value for p in found.points if p.x == k}
        assert mine == {
            "mean cosine": pytest.approx(expected.mean_cosine, abs=1e-9),
            "participation ratio": pytest.approx(expected.participation_ratio),
            "effective rank": pytest.approx(expected.effective_rank),
        }


def test_tokens_are_those_of_the_span() -> None:
    rng = np.random.default_rng(6)
    lengths = [3, 4, 2]
    rows = rng.normal(1, 1, (9, 8)).astype(np.float32)
    span = np.array([0, 1, 1, 0, 1, 1, 0, 1, 1], bool)
    features = MemoryFeatures(
        pooled({1: rows}).sizes,
        {"hidden/2": ragged(rows, lengths)},
        span=ragged(span, lengths),
    )
    config = GeometryConfig(at="tokens", layers="2")
    found = probe_geometry(config, [features], classes([0, 1, 0]), QUIET)
    expected = geometry([ragged(rows[span], [2, 2, 2])])
    assert {p.measure: p.value for p in found.points} == {
        "mean cosine": pytest.approx(expected.mean_cosine, abs=1e-9),
        "mean cosine inside a text": pytest.approx(expected.mean_cosine_inside, abs=1e-9),
        "participation ratio": pytest.approx(expected.participation_ratio),
        "effective rank": pytest.approx(expected.effective_rank),
    }


def test_a_sample_is_drawn_by_seed_and_text_and_not_by_order() -> None:
    digests = [text_digest(str(i)) for i in range(50)]
    config = GeometryConfig(n_texts=10)
    chosen = {digests[i] for i in chosen_texts(digests, config)}
    turned = digests[::-1]
    assert {turned[i] for i in chosen_texts(turned, config)} == chosen
    assert len(chosen) == 10
    other = config.model_copy(update={"seed": 1})
    assert {digests[i] for i in chosen_texts(digests, other)} != chosen
    assert chosen_texts(digests, GeometryConfig()).tolist() == list(range(50))


def test_a_sample_is_what_is_measured() -> None:
    rows = np.random.default_rng(7).normal(size=(30, 8))
    config, corpus = GeometryConfig(n_texts=9, layers="1"), classes([0, 1] * 15)
    found = probe_geometry(config, [pooled({1: rows})], corpus, QUIET)
    taken = rows[chosen_texts(corpus.digests, config)].astype(np.float32)
    assert found.points[0].value == pytest.approx(geometry([single(taken)]).mean_cosine, abs=1e-9)


def test_what_has_no_geometry_is_refused() -> None:
    rows = np.ones((6, 8))
    with pytest.raises(InputError, match="fewer than two texts"):
        geometry([ragged(rows, [6])], "hidden/1")
    with pytest.raises(InputError, match="fewer than two texts"):
        geometry([])
    for bad in (0.0, np.inf, np.nan):
        broken = rows.copy()
        broken[2] = bad
        with pytest.raises(InputError, match="hidden/1 hold a vector of zeros or of non-finite"):
            geometry([single(broken)], "hidden/1")
    corpus = classes([0, 1] * 3)
    with pytest.raises(InputError, match="ensemble of 2 prompts"):
        probe_geometry(GeometryConfig(), [pooled({1: rows})] * 2, corpus, QUIET)
    with pytest.raises(InputError, match="the corpus has 1; give at least two"):
        chosen_texts(corpus.digests[:1], GeometryConfig())
    with pytest.raises(ValidationError, match="weights over tokens"):
        GeometryConfig(what="attention_rows", at="tokens")
