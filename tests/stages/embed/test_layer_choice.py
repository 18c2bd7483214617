import numpy as np
import pytest
from scipy.stats import spearmanr

from permafrost.stages.embed import EmbedConfig, choose_layers
from permafrost.storage.errors import InputError

N_PAIRS = 40
PAIRS = np.arange(2 * N_PAIRS).reshape(-1, 2)
GOLD = np.round(np.random.default_rng(5).uniform(0, 5, N_PAIRS))


def _noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2 * N_PAIRS, 12)).astype(np.float32)


def _planted(noise: float, seed: int = 0) -> np.ndarray:
    """Cosines of pairs that grow with gold, but for `noise`."""
    rng = np.random.default_rng(seed)
    out = np.zeros((2 * N_PAIRS, 12))
    angles = (5 - GOLD) / 5 * np.pi / 2
    out[PAIRS[:, 0], 0] = 1
    out[PAIRS[:, 1], 0], out[PAIRS[:, 1], 1] = np.cos(angles), np.sin(angles)
    return (out + noise * rng.normal(size=out.shape)).astype(np.float32)


def _score(vectors: np.ndarray) -> float:
    a, b = (vectors[PAIRS[:, i]].astype(np.float64) for i in (0, 1))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(spearmanr(cosines, GOLD)[0])  # type: ignore[arg-type]


def test_a_planted_layer_is_found() -> None:
    vectors = {k: _noise(k) for k in (1, 2, 4, 5)} | {3: _planted(0.0)}
    assert choose_layers(vectors, PAIRS, GOLD) == (3,)


def test_the_best_prefix_of_the_ranking_is_taken() -> None:
    vectors = {k: _planted(0.35, seed=k) for k in (1, 2, 3, 4, 6)} | {5: _noise(5)}
    ranking = sorted(vectors, key=lambda k: -_score(vectors[k]))
    assert ranking[-1] == 5
    prefixes = [ranking[:n] for n in range(1, 7)]
    scores = [_score(sum(vectors[k] for k in p)) for p in prefixes]  # type: ignore[arg-type]
    best = prefixes[int(np.argmax(scores))]
    assert len(best) > 1
    assert choose_layers(vectors, PAIRS, GOLD) == tuple(sorted(best))
    side_by_side = [_score(np.hstack([vectors[k] for k in p])) for p in prefixes]
    expected = tuple(sorted(prefixes[int(np.argmax(side_by_side))]))
    apart = EmbedConfig(layers="auto", combine="concatenate")
    assert choose_layers(vectors, PAIRS, GOLD, apart) == expected
    assert choose_layers(vectors, PAIRS, GOLD, EmbedConfig(layers="best")) == (ranking[0],)


def test_the_correlation_is_the_one_that_is_asked_for() -> None:
    """Layer 1 has the better order, layer 2 is nearer to a line."""
    ordered, linear = np.zeros((2, 2 * N_PAIRS, 2), dtype=np.float32)
    gold = np.arange(N_PAIRS, dtype=np.float64)
    for vectors, cosines in (
        (ordered, np.where(gold < N_PAIRS - 1, gold * 1e-3, 0.9)),
        (linear, (gold + np.where(gold % 2, 1.5, -1.5)) / N_PAIRS),
    ):
        cosines = np.clip(cosines, -1, 1)
        vectors[PAIRS[:, 0], 0] = 1
        vectors[PAIRS[:, 1]] = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    by_layer = {1: ordered, 2: linear}
    for correlation, layer in (("spearman", 1), ("pearson", 2)):
        config = EmbedConfig.model_validate({"layers": "best", "chosen_by": correlation})
        assert choose_layers(by_layer, PAIRS, gold, config) == (layer,)


def test_ties_go_to_fewer_and_lower_layers() -> None:
    same = _planted(0.2)
    assert choose_layers({4: same, 2: same, 3: same}, PAIRS, GOLD) == (2,)


def test_a_layer_that_says_nothing_loses() -> None:
    constant = np.ones((2 * N_PAIRS, 12), dtype=np.float32)
    assert choose_layers({1: constant, 2: _planted(0.0)}, PAIRS, GOLD) == (2,)
    with pytest.raises(InputError, match="no layer of 1, 2"):
        choose_layers({1: constant, 2: constant * 2}, PAIRS, GOLD)


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(InputError, match=r"40 development pairs have 1 different score"):
        choose_layers({1: _noise(1)}, PAIRS, np.ones(N_PAIRS))
    for broken in (0, np.nan, np.inf):
        vectors = _noise(1)
        vectors[7] = broken
        with pytest.raises(InputError, match=r"development text 7 .* layer 1"):
            choose_layers({1: vectors}, PAIRS, GOLD)
