"""Correlations of plain cosines against numpy and scipy called here."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from scipy import stats

from permafrost.stages.probes.raw_cosine import RawCosineConfig, probe_raw_cosine
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.embed.corpus_features import N_TEXTS, graded
from tests.stages.probes.probe_features import classes, pooled

RNG = np.random.default_rng(0)
LAYERS: dict[int | str, np.ndarray] = {
    layer: (1 + RNG.normal(size=(N_TEXTS, 5))).astype(np.float32) for layer in (0, 1, 2, 3)
}
QUIET = SilentProgress()


def test_every_split_has_both_correlations_of_every_layer() -> None:
    corpus = graded(RNG.normal(size=(N_TEXTS, 4)))
    found = probe_raw_cosine(RawCosineConfig(), [pooled(LAYERS)], corpus, QUIET)
    values = {(p.measure, p.at): p.value for p in found.points}
    assert len(values) == len(found.points) == 2 * len(corpus.splits) * len(LAYERS)
    assert not found.choice, "nothing is chosen"
    for layer, vectors in LAYERS.items():
        for split in corpus.splits:
            rows = corpus.split(split)
            a, b = (vectors[rows.column(c).to_numpy()].astype(float) for c in ("text", "text_pair"))
            lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            cosines, labels = (a * b).sum(axis=1) / lengths, rows.column("label").to_numpy()
            pearson = np.corrcoef(cosines, labels)[0, 1]
            assert values[f"{split} Pearson", str(layer)] == pytest.approx(pearson, abs=1e-9)
            spearman = stats.spearmanr(cosines, labels).statistic
            assert values[f"{split} Spearman", str(layer)] == pytest.approx(spearman, abs=1e-9)


def test_vectors_are_centred_first_if_that_is_asked() -> None:
    corpus = graded(RNG.normal(size=(N_TEXTS, 4)))
    centred = {n: v - v.mean(axis=1, keepdims=True) for n, v in LAYERS.items()}
    asked = probe_raw_cosine(RawCosineConfig(scale="centred"), [pooled(LAYERS)], corpus, QUIET)
    by_hand = probe_raw_cosine(RawCosineConfig(), [pooled(centred)], corpus, QUIET)
    plain = probe_raw_cosine(RawCosineConfig(), [pooled(LAYERS)], corpus, QUIET)
    for one, other, without in zip(asked.points, by_hand.points, plain.points, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-5)
        assert one.value != pytest.approx(without.value, abs=1e-3)


def test_cosines_that_differ_by_rounding_alone_have_no_correlation() -> None:
    """Parallel vectors of different lengths: every cosine is 1 but for its last digits."""
    corpus = graded(RNG.normal(size=(N_TEXTS, 4)))
    parallel = (RNG.uniform(1, 2, (N_TEXTS, 1)) * RNG.normal(size=7)).astype(np.float32)
    only = RawCosineConfig(layers="1")
    found = probe_raw_cosine(only, [pooled({1: parallel})], corpus, QUIET)
    assert {p.value for p in found.points} == {0.0}


def test_pairs_of_equal_texts_share_their_rank() -> None:
    corpus = graded(RNG.normal(size=(N_TEXTS, 4)))
    twice = np.concatenate([LAYERS[1][: N_TEXTS // 2]] * 2)
    rows = corpus.split("test")
    first = rows.column("text").to_numpy()
    twins = np.where(np.arange(len(first)) % 2, first, rows.column("text_pair").to_numpy())
    place = corpus.examples.schema.get_field_index("text_pair")
    every = corpus.examples.column("text_pair").to_numpy().copy()
    every[np.asarray(corpus.examples.column("split")) == "test"] = twins
    changed = replace(
        corpus, examples=corpus.examples.set_column(place, "text_pair", pa.array(every))
    )
    found = probe_raw_cosine(RawCosineConfig(layers="1"), [pooled({1: twice})], changed, QUIET)
    (value,) = (p.value for p in found.points if p.measure == "test Spearman")
    a, b = twice[first].astype(float), twice[twins].astype(float)
    cosines = (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    assert (cosines == 1).sum() >= len(first) // 2
    labels = rows.column("label").to_numpy()
    assert value == pytest.approx(stats.spearmanr(cosines, labels).statistic, abs=1e-9)


def test_what_has_no_graded_pairs_or_no_vector_of_a_text_is_refused() -> None:
    with pytest.raises(InputError, match="similarity"):
        probe_raw_cosine(RawCosineConfig(), [pooled(LAYERS)], classes([0, 1] * 30), QUIET)
    with pytest.raises(ValidationError, match="one vector per text"):
        RawCosineConfig(at="tokens")
