"""Metrics against scikit-learn and scipy, ranks against brute force."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn_metrics

from permafrost.stages.fit import FitConfig, TaskFacts, evaluate, majority_rate
from permafrost.stages.fit.losses import CosineMse
from permafrost.stages.fit.models import build_model
from permafrost.stages.fit.ranks import partner_ranks
from permafrost.stages.heads import ScorerHead


def test_metrics_equal_scikit_learn():
    rng = np.random.default_rng(0)
    for classes in (2, 4):
        labels, guesses = rng.integers(0, classes, (2, 200))
        assert evaluate("accuracy", labels, guesses) == sklearn_metrics.accuracy_score(
            labels, guesses
        )
        assert evaluate("mcc", labels, guesses) == pytest.approx(
            sklearn_metrics.matthews_corrcoef(labels, guesses)
        )
    labels, guesses = rng.integers(0, 2, (2, 50))
    assert evaluate("f1", labels, guesses) == pytest.approx(
        sklearn_metrics.f1_score(labels, guesses)
    )
    assert evaluate("mcc", labels, np.zeros(50, np.int64)) == 0.0
    assert evaluate("f1", np.zeros(3, np.int64), np.zeros(3, np.int64)) == 0.0
    assert majority_rate(np.array([0, 1, 1, 2])) == 0.5


def test_correlations_equal_scipy_also_with_ties():
    rng = np.random.default_rng(0)
    for labels in (rng.normal(size=60), rng.integers(0, 5, 60).astype(np.float64)):
        cosines = labels + rng.normal(size=60)
        cosines[:10] = cosines[10:20]
        rho, r = stats.spearmanr(labels, cosines)[0], stats.pearsonr(labels, cosines)[0]
        assert evaluate("spearman", labels, cosines) == pytest.approx(rho, rel=1e-12)
        assert evaluate("pearson", labels, cosines) == pytest.approx(r, rel=1e-12)
        both = evaluate("spearman_pearson", labels, cosines)
        assert both == pytest.approx((rho + r) / 2, rel=1e-12)


def test_a_constant_side_correlates_with_nothing():
    labels = np.array([1.0, 2.0, 3.0])
    for metric in ("spearman", "pearson", "spearman_pearson"):
        assert evaluate(metric, labels, np.full(3, 0.7)) == 0.0


def test_mrr_is_the_mean_reciprocal_rank():
    assert evaluate("mrr", np.ones(3, np.int64), np.array([1, 2, 4])) == (1 + 1 / 2 + 1 / 4) / 3


def _rank(vectors, pairs, i, similarity):
    def near(a, b):
        x, y = vectors[a], vectors[b]
        return x @ y if similarity == "dot" else x @ y / np.linalg.norm(x) / np.linalg.norm(y)

    first, second = pairs[i]
    partners = {b for a, b in pairs if a == first}
    rivals = {b for _, b in pairs} - partners - {first}
    own = near(first, second)
    return 1 + sum(near(first, b) >= own - 1e-12 for b in rivals), own


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_ranks_equal_brute_force_with_repeated_texts_and_ties(similarity):
    rng = np.random.default_rng(1)
    # More pairs than are worked on at a time, and texts that are first, second and repeated.
    vectors = rng.integers(-2, 3, (60, 4)).astype(np.float64)
    vectors[(vectors == 0).all(axis=1)] = 1
    pairs = rng.integers(0, 60, (300, 2)).tolist()
    ranks, near = partner_ranks(vectors, np.array(pairs).T.copy(), similarity)
    expected = [_rank(vectors, pairs, i, similarity) for i in range(len(pairs))]
    assert ranks.tolist() == [rank for rank, _ in expected]
    np.testing.assert_allclose(near, [own for _, own in expected], rtol=1e-12, atol=1e-12)


def test_a_collapsed_encoder_gets_the_worst_rank():
    vectors = np.tile(np.random.default_rng(2).normal(size=9), (10, 1))
    sides = np.arange(10).reshape(5, 2).T.copy()
    for similarity in ("dot", "cosine"):
        assert partner_ranks(vectors, sides, similarity)[0].tolist() == [5] * 5


def test_a_vector_of_zeros_is_near_to_nothing():
    vectors = np.eye(4)
    vectors[0] = 0
    ranks, near = partner_ranks(vectors, np.array([[0, 2], [1, 3]]), "cosine")
    assert near.tolist() == [0.0, 0.0]
    assert ranks.tolist() == [2, 2]


def test_identical_texts_have_a_cosine_of_one_and_order_plays_no_role():
    config = FitConfig(head=ScorerHead(hidden=4), seed=0, loss=CosineMse())
    model = build_model(config, TaskFacts("similarity", (), (0.0, 1.0)), 6)
    encoded = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
    one = np.arange(2000)
    assert set(model.predict(encoded, np.stack([one, one])).values.tolist()) == {1.0}
    forth = model.predict(encoded, np.stack([one, one[::-1]])).values
    back = model.predict(encoded, np.stack([one[::-1], one])).values
    assert np.array_equal(forth, back)
    rows = encoded.double().numpy()
    norms = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(
        forth, (rows * rows[::-1]).sum(1) / (norms * norms[::-1]), rtol=1e-12, atol=1e-15
    )
