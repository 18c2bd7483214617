"""Scores by layer against scikit-learn called here, and a choice of layer that sees dev alone."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, matthews_corrcoef
from sklearn.preprocessing import StandardScaler

from permafrost.stages.probes import ProbeCurves, TaskScoreConfig, probe_task
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.embed.corpus_features import graded
from tests.stages.probes.probe_features import (
    classes,
    corpus_of,
    pooled,
    with_labels,
)

QUIET = SilentProgress()
N, D = 180, 6
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, N)
SIGNAL = np.where(LABELS, 1.0, -1.0)[:, None]


def noisy(strength: float, seed: int) -> np.ndarray:
    """Vectors whose first columns hold the class at some strength, far from 0 and from a scale of 1."""
    noise = np.random.default_rng(seed).normal(size=(N, D))
    noise[:, :2] += strength * SIGNAL
    return (7 + 30 * noise).astype(np.float32)


LAYERS: dict[int | str, np.ndarray] = {
    0: noisy(0, 1),
    1: noisy(0.4, 2),
    2: noisy(1.2, 3),
    3: noisy(0.7, 4),
}


def curves(found: ProbeCurves) -> dict[str, dict[str, float]]:
    result: dict[str, dict[str, float]] = {}
    for point in found.points:
        result.setdefault(point.measure, {})[point.at] = point.value
    return result


def split_of(x: np.ndarray, name: str) -> np.ndarray:
    third = len(x) // 3
    return x[{"train": 0, "dev": 1, "test": 2}[name] * third :][:third]


def by_scikit(x: np.ndarray, y: np.ndarray, c: float, split: str) -> np.ndarray:
    """Predictions of a logistic regression on columns standardised by train."""
    scaler = StandardScaler().fit(split_of(x, "train").astype(np.float64))
    model = LogisticRegression(C=c, max_iter=1000)
    model.fit(scaler.transform(split_of(x, "train").astype(np.float64)), split_of(y, "train"))
    return model.predict(scaler.transform(split_of(x, split).astype(np.float64)))


def test_scores_are_those_of_a_logistic_regression_on_each_layer() -> None:
    found = probe_task(TaskScoreConfig(), [pooled(LAYERS)], classes(LABELS.tolist()), QUIET)
    assert found.axis == "layer"
    assert {p.unit for p in found.points} == {"share"}
    scores = curves(found)
    assert set(scores) == {"dev accuracy", "test accuracy"}
    for layer, vectors in LAYERS.items():
        for split in ("dev", "test"):
            guess = by_scikit(vectors, LABELS, 1.0, split)
            expected = accuracy_score(split_of(LABELS, split), guess)
            assert scores[f"{split} accuracy"][str(layer)] == pytest.approx(expected, abs=1e-12)


def test_the_layer_and_the_strength_are_those_that_dev_likes_best() -> None:
    config = TaskScoreConfig(c=(10.0, 0.001, 1.0), metric="mcc")
    found = probe_task(config, [pooled(LAYERS)], classes(LABELS.tolist()), QUIET)
    y_dev, y_test = split_of(LABELS, "dev"), split_of(LABELS, "test")
    best: dict[int | str, tuple[float, float]] = {}
    for layer, vectors in LAYERS.items():
        candidates = [
            (matthews_corrcoef(y_dev, by_scikit(vectors, LABELS, c, "dev")), -c)
            for c in (0.001, 1.0, 10.0)
        ]
        dev, negative_c = max(candidates)
        test = matthews_corrcoef(y_test, by_scikit(vectors, LABELS, -negative_c, "test"))
        best[layer] = (float(dev), float(test))
    for layer, (dev, test) in best.items():
        assert curves(found)["dev mcc"][str(layer)] == pytest.approx(dev, abs=1e-12)
        assert curves(found)["test mcc"][str(layer)] == pytest.approx(test, abs=1e-12)
    chosen = max(best, key=lambda layer: best[layer][0])
    assert chosen == 2
    assert found.choice == {
        "layer": "2",
        "dev mcc": pytest.approx(best[2][0]),
        "test mcc": pytest.approx(best[2][1]),
    }
    assert [p.at for p in found.points if p.chosen] == ["2", "2"]


def test_what_is_chosen_does_not_see_test() -> None:
    corpus, config = classes(LABELS.tolist()), TaskScoreConfig(c=(0.01, 1.0))
    found = probe_task(config, [pooled(LAYERS)], corpus, QUIET)
    turned = with_labels(corpus, "test", [1 - y for y in split_of(LABELS, "test").tolist()])
    other = probe_task(config, [pooled(LAYERS)], turned, QUIET)
    assert curves(found)["dev accuracy"] == curves(other)["dev accuracy"]
    assert [(p.at, p.chosen) for p in found.points] == [(p.at, p.chosen) for p in other.points]
    for layer, value in curves(found)["test accuracy"].items():
        assert curves(other)["test accuracy"][layer] == pytest.approx(1 - value)
    # Dev does decide: with its labels turned, another layer is best.
    against = with_labels(corpus, "dev", [1 - y for y in split_of(LABELS, "dev").tolist()])
    assert probe_task(config, [pooled(LAYERS)], against, QUIET).choice["layer"] != "2"


def test_ties_go_to_the_lower_layer() -> None:
    same = dict.fromkeys((1, 2, 3), LAYERS[2])
    config = TaskScoreConfig(layers="1-3")
    found = probe_task(config, [pooled(same)], classes(LABELS.tolist()), QUIET)
    assert found.choice["layer"] == "1"


@pytest.mark.parametrize("features", ["full", "concat"])
def test_pairs_are_described_by_both_vectors(features: Literal["full", "concat"]) -> None:
    """The class is whether two texts have the same sign, which no linear model of [u, v] can tell."""
    rng = np.random.default_rng(5)
    vectors = rng.choice([-1.0, 1.0], (2 * N, 1)) * (1 + 0.2 * rng.random((2 * N, 2)))
    sides = [(i, N + i) for i in range(N)]
    labels = [float(vectors[a, 0] * vectors[b, 0] > 0) for a, b in sides]
    corpus = corpus_of("pair_classification", labels, sides, 2 * N)
    config = TaskScoreConfig(layers="1", pair_features=features)
    found = probe_task(config, [pooled({1: vectors})], corpus, QUIET)
    u, v = vectors[:N].astype(np.float32), vectors[N:].astype(np.float32)
    columns = [u, v, np.abs(u.astype(float) - v), u.astype(float) * v]
    x = np.hstack(columns if features == "full" else columns[:2])
    y = np.array(labels).astype(int)
    expected = accuracy_score(split_of(y, "test"), by_scikit(x, y, 1.0, "test"))
    assert curves(found)["test accuracy"]["1"] == pytest.approx(expected, abs=1e-12)
    assert (expected == 1) == (features == "full")


def test_graded_pairs_are_scored_by_their_cosines() -> None:
    truth = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    layers: dict[int | str, np.ndarray] = {
        1: np.random.default_rng(1).normal(size=truth.shape).astype(np.float32),
        "final": truth,
    }
    corpus = graded(truth, ("dev", "test"))
    found = probe_task(TaskScoreConfig(layers="1,final"), [pooled(layers)], corpus, QUIET)
    for layer, vectors in layers.items():
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        for split in ("dev", "test"):
            rows = corpus.split(split)
            first, second = (rows.column(c).to_numpy() for c in ("text", "text_pair"))
            cosines = (unit[first] * unit[second]).sum(axis=1).astype(float)
            expected = spearmanr(cosines, rows.column("label").to_numpy()).statistic
            value = curves(found)[f"{split} Spearman"][str(layer)]
            assert value == pytest.approx(expected, abs=2e-3), "cosines in other precision"
    # After the last of three blocks.
    assert {p.x for p in found.points} == {1.0, 4.0}
    assert found.choice["layer"] == "final"


def test_a_layer_that_is_the_same_for_all_texts_scores_0() -> None:
    truth = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    layers: dict[int | str, np.ndarray] = {0: np.ones_like(truth), 1: truth}
    corpus = graded(truth, ("dev", "test"))
    found = probe_task(TaskScoreConfig(layers="0,1"), [pooled(layers)], corpus, QUIET)
    assert curves(found)["test Spearman"]["0"] == 0
    assert curves(found)["test Spearman"]["1"] > 0.9
    assert found.choice["layer"] == "1"


def test_the_prompts_of_an_ensemble_are_averaged() -> None:
    noise = 100 * np.random.default_rng(9).normal(size=(N, D))
    members = [
        pooled({2: LAYERS[2].astype(float) + noise}),
        pooled({2: LAYERS[2].astype(float) - noise}),
    ]
    config, corpus = TaskScoreConfig(layers="2"), classes(LABELS.tolist())
    together = curves(probe_task(config, members, corpus, QUIET))
    assert together == curves(probe_task(config, [pooled({2: LAYERS[2]})], corpus, QUIET))


def test_scores_survive_a_folder(tmp_path: Path) -> None:
    found = probe_task(TaskScoreConfig(), [pooled(LAYERS)], classes(LABELS.tolist()), QUIET)
    found.save(tmp_path)
    assert ProbeCurves.load(tmp_path) == found


def test_what_cannot_be_scored_is_refused() -> None:
    corpus = classes(LABELS.tolist())
    with pytest.raises(InputError, match="kind unlabelled with train, dev, test; name a labelled"):
        probe_task(TaskScoreConfig(), [pooled(LAYERS)], replace(corpus, task="unlabelled"), QUIET)
    no_dev = corpus_of("classification", [0.0, 1.0], [(0,), (1,)], 2, ("train", "test"))
    with pytest.raises(InputError, match=r"train, dev, test, but .* with train, test;"):
        probe_task(TaskScoreConfig(), [pooled(LAYERS)], no_dev, QUIET)
    one_class = with_labels(corpus, "train", [1.0] * (N // 3))
    with pytest.raises(InputError, match="all 60 training examples have the class 'yes'"):
        probe_task(TaskScoreConfig(), [pooled(LAYERS)], one_class, QUIET)
    with pytest.raises(InputError, match="has hidden 0 to 3"):
        probe_task(TaskScoreConfig(layers="4"), [pooled(LAYERS)], corpus, QUIET)
    broken = LAYERS[2].copy()
    broken[3, 0] = np.nan
    with pytest.raises(InputError, match="1 non-finite numbers, the first in text 3"):
        probe_task(TaskScoreConfig(layers="2"), [pooled({2: broken})], corpus, QUIET)
    with pytest.raises(
        ValidationError, match="one vector per text, not one per token; write at: mean"
    ):
        TaskScoreConfig(at="tokens")
    with pytest.raises(ValidationError, match="weights over tokens"):
        TaskScoreConfig(what="attention_rows", at="tokens")
    with pytest.raises(ValidationError, match="'x' is not a layer"):
        TaskScoreConfig(layers="x")
