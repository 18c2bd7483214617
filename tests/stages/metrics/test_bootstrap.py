"""Intervals and tests by resampling, against scikit-learn and scipy, and on data whose truth is known."""

import warnings
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats
from sklearn import metrics as sklearn_metrics

from permafrost.stages.fit import Metric, evaluate
from permafrost.stages.metrics import resampling
from permafrost.stages.metrics.bootstrap import (
    BootstrapConfig,
    Estimate,
    bootstrap_interval,
    difference,
    estimate,
    paired_bootstrap,
    resample,
)
from permafrost.stages.metrics.resampling import METRICS, draws, resampled, units
from permafrost.storage.errors import InputError

N = 60


def example_data(metric: str, rng: np.random.Generator, n: int = N):
    """Labels and predictions `[3, n]` that go with a metric, with ties."""
    match metric:
        case "accuracy" | "mcc":
            return rng.integers(0, 3, n), rng.integers(0, 3, (3, n))
        case "f1":
            return rng.integers(0, 2, n), rng.integers(0, 2, (3, n))
        case "mrr":
            return np.ones(n, np.int64), rng.integers(1, 9, (3, n))
    labels = rng.integers(0, 6, n).astype(np.float64)
    return labels, np.round(labels + rng.normal(0, 2, (3, n)), 1)


def by_library(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """The metric of one resample, by another implementation; 0 of a constant side."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match metric:
            case "accuracy":
                return float(sklearn_metrics.accuracy_score(labels, predictions))
            case "mcc":
                return float(sklearn_metrics.matthews_corrcoef(labels, predictions))
            case "f1":
                return float(sklearn_metrics.f1_score(labels, predictions, zero_division=0))
            case "mrr":
                return float(np.mean([1 / rank for rank in predictions]))
        found = [stats.spearmanr(labels, predictions)[0], stats.pearsonr(labels, predictions)[0]]
        rho, r = (0.0 if np.isnan(value) else float(value) for value in found)
    return {"spearman": rho, "pearson": r, "spearman_pearson": (rho + r) / 2}[metric]


def drawn_examples(counts: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts.astype(np.int64))


def test_the_metrics_are_those_of_a_fit():
    assert set(get_args(Metric)) == METRICS


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_every_draw_once_gives_the_metric_of_a_fit(metric: str):
    labels, predictions = example_data(metric, np.random.default_rng(3))
    values, _ = resample(metric, labels, predictions, 1, seed=0)
    expected = [evaluate(metric, labels, p) for p in predictions]  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-13)


@pytest.mark.few(3)
@pytest.mark.parametrize("metric", sorted(METRICS))
def test_metrics_of_resamples_equal_those_of_the_drawn_examples(metric: str):
    labels, predictions = example_data(metric, np.random.default_rng(4), n=12)
    (counts,) = draws(12, 40, seed=1)
    values = resampled(metric, labels.astype(float), predictions.astype(float), counts)
    for b, row in enumerate(counts.T):
        chosen = drawn_examples(row)
        for k in range(3):
            expected = by_library(metric, labels[chosen], predictions[k][chosen])
            assert values[k, b] == pytest.approx(expected, abs=1e-12)


def test_average_precision_of_resamples_is_that_of_the_drawn_examples():
    rng = np.random.default_rng(5)
    labels = (rng.random(12) < 0.4).astype(float)
    # Rounded, so that some are equal.
    predictions = rng.normal(size=(3, 12)).round(0)
    (counts,) = draws(12, 40, seed=1)
    values = resampled("average_precision", labels, predictions, counts)
    for b, row in enumerate(counts.T):
        chosen = drawn_examples(row)
        for k in range(3):
            expected = 0.0
            if labels[chosen].any():
                expected = sklearn_metrics.average_precision_score(
                    labels[chosen], predictions[k][chosen]
                )
            assert values[k, b] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["mcc", "f1", "spearman", "pearson", "spearman_pearson"])
def test_a_resample_in_which_a_side_is_constant_scores_0(metric: str):
    labels, predictions = np.array([0.0, 0.0, 1.0]), np.array([[0.1, 0.7, 0.7]])
    if metric in ("mcc", "f1"):
        predictions = np.array([[0.0, 1.0, 1.0]])
    counts = np.array([[1.0, 0.0, 3.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    expected = [
        by_library(metric, labels[c], predictions[0][c]) for c in map(drawn_examples, counts.T)
    ]
    assert resampled(metric, labels, predictions, counts)[0].tolist() == expected


def test_constants_of_any_size_correlate_with_nothing():
    labels, rng = np.arange(40.0), np.random.default_rng(0)
    for size in (1e-300, 0.1, 1e200):
        predictions = np.full((1, 40), size)
        for metric in ("spearman", "pearson"):
            assert not resample(metric, labels, predictions, 50, seed=0)[1].any()
    varied = rng.normal(size=40)
    expected = resample("pearson", labels, varied[None], 50, seed=0)[1]
    for size in (1e-200, 1e200):
        found = resample("pearson", labels, size * varied[None], 50, seed=0)[1]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_draws_are_whole_test_sets_and_the_same_however_many_are_held(monkeypatch):
    (whole,) = draws(7, 100, seed=5)
    assert whole.shape == (7, 100)
    assert (whole.sum(axis=0) == 7).all()
    monkeypatch.setattr(resampling, "_CELLS_AT_A_TIME", 7 * 9)
    parts = list(draws(7, 100, seed=5))
    assert [part.shape[1] for part in parts] == [9] * 11 + [1]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.few(3)
def as_students_t(level: float) -> float:
    """How much farther from the middle than a normal distribution N examples are."""
    ends = [d.ppf((1 + level) / 2) for d in (stats.t(N - 1), stats.norm())]
    return float((N / (N - 1)) ** 0.5 * ends[0] / ends[1])


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_intervals_equal_those_of_scipy_on_the_same_resamples(metric: str):
    labels, (predictions, *_) = example_data(metric, np.random.default_rng(6))
    found = bootstrap_interval(metric, labels, predictions, n_resamples=200, seed=11, level=0.9)

    def value(chosen: np.ndarray) -> float:
        return by_library(metric, labels[chosen], predictions[chosen])

    expected = stats.bootstrap(
        (np.arange(N),),
        value,
        n_resamples=200,
        vectorized=False,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(11),
    )
    middle, ends = value(np.arange(N)), expected.confidence_interval
    wider = as_students_t(0.9)
    assert found.value == pytest.approx(middle, abs=1e-12)
    assert found.low == pytest.approx(middle + wider * (ends.low - middle), abs=1e-12)
    assert found.high == pytest.approx(middle + wider * (ends.high - middle), abs=1e-12)
    assert found.half_width == (found.high - found.low) / 2


def test_a_difference_equals_that_of_scipy_and_counts_the_signs():
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 2, N)
    a, b = (np.where(rng.random(N) < right, labels, 1 - labels) for right in (0.85, 0.7))
    found = paired_bootstrap("accuracy", labels, a, b, n_resamples=500, seed=2)
    right = (a == labels).astype(float) - (b == labels)
    expected = stats.bootstrap(
        (right,), np.mean, n_resamples=500, method="percentile", rng=np.random.default_rng(2)
    )
    middle = right.mean()
    widened = middle + as_students_t(0.95) * (expected.bootstrap_distribution - middle)
    assert found.value == pytest.approx(middle, abs=1e-12)
    ends = np.quantile(widened, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(tuple(ends), abs=1e-12)
    sides = [widened <= 1e-12, widened >= -1e-12]
    assert found.p == min(1, 2 * (1 + min(side.sum() for side in sides)) / 501)
    other = paired_bootstrap("accuracy", labels, b, a, n_resamples=500, seed=2)
    assert (other.value, other.p) == (-found.value, found.p)
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low), abs=1e-12)


def test_p_is_1_without_a_difference_and_never_0():
    def p(value: float, values: np.ndarray) -> float:
        nothing = Estimate(0.0, np.zeros(99))
        return difference(Estimate(value, values), nothing, 0.95, seed=0).p

    assert p(0.0, np.zeros(99)) == 1.0
    assert p(0.1, np.full(99, 0.1)) == 2 / 100
    assert p(0.0, np.resize([1e-17, -1e-17, 0.0], 99)) == 1.0


def test_the_same_fits_do_not_differ_however_far_apart_their_seeds_lie():
    labels = np.arange(40) % 2
    predictions = np.stack([labels, 1 - labels])
    found = paired_bootstrap("accuracy", labels, predictions, predictions.copy())
    assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)
    one_less = paired_bootstrap("accuracy", labels, predictions, predictions[:1])
    assert one_less.low < one_less.high


@pytest.mark.parametrize(("metric", "widest"), [("accuracy", 1.0), ("pearson", 2.0)])
def test_the_interval_of_a_difference_ends_where_that_of_the_metric_does(
    metric: str, widest: float
):
    """Of seeds that lie far apart Student's t reaches beyond it."""
    labels = np.arange(40) % 2
    apart, even = np.stack([labels, 1 - labels]), np.stack([np.roll(labels, 1), labels])
    found = paired_bootstrap(metric, labels, apart, even)
    assert (found.low, found.high) == (-widest, widest)


def seeds_of(accuracies: tuple[float, ...], labels: np.ndarray) -> np.ndarray:
    """Predictions of one method, a seed each; the first of each accuracy's examples are right."""
    n = len(labels)
    return np.stack([np.where(np.arange(n) < round(a * n), labels, 1 - labels) for a in accuracies])


def test_methods_whose_seeds_lie_far_apart_are_not_told_apart_by_their_examples():
    labels = np.arange(300) % 2
    # 84.1 ± 16.9 and 93.8 ± 4.7, three seeds each.
    a, b = seeds_of((0.647, 0.926, 0.95), labels), seeds_of((0.884, 0.958, 0.972), labels)
    of_a, of_b = ((x == labels).mean(axis=1) for x in (a, b))
    assert (of_a.mean(), of_a.std(ddof=1)) == pytest.approx((0.841, 0.169), abs=0.002)
    assert (of_b.mean(), of_b.std(ddof=1)) == pytest.approx((0.938, 0.047), abs=0.002)
    found = paired_bootstrap("accuracy", labels, a, b)
    assert found.p > 0.2
    assert found.low < -0.2 < 0.2 < found.high
    alone = bootstrap_interval("accuracy", labels, a)
    assert (alone.low, alone.high) == (pytest.approx(0.45, abs=0.1), 1.0), "it ends at 1"


def test_with_seeds_alone_the_test_is_welchs():
    # As good as no examples' noise: two or three seeds on each side against scipy's t-test.
    rng, still = np.random.default_rng(2), np.zeros((3, 20_000))
    for shift in (0.0, 0.1, 0.3):
        a, b = 0.5 + rng.normal(0, 0.05, 3), 0.5 - shift + rng.normal(0, 0.02, 2)
        found = difference(
            estimate("accuracy", a, still + a[:, None], None, 0.95),
            estimate("accuracy", b, still[:2] + b[:, None], None, 0.95),
            0.95,
            seed=1,
        )
        expected: Any = stats.ttest_ind(a, b, equal_var=False)
        interval = expected.confidence_interval(0.95)
        assert found.p == pytest.approx(expected.pvalue, rel=0.1, abs=5e-4)
        assert found.value == pytest.approx(a.mean() - b.mean())
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=0.1)


def test_swapping_two_methods_with_seeds_changes_the_sign_and_nothing_else():
    labels = np.arange(100) % 2
    a, b = seeds_of((0.8, 0.9, 0.7), labels), seeds_of((0.75, 0.6), labels)
    one, other = (
        paired_bootstrap("accuracy", labels, x, y, n_resamples=300) for x, y in ((a, b), (b, a))
    )
    assert (other.value, other.p) == (pytest.approx(-one.value), one.p)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("n_seeds", [2, 3])
@pytest.mark.parametrize("spread", [0.0, pytest.param(0.02, marks=pytest.mark.deep), 0.1])
def test_equal_methods_whose_seeds_differ_are_not_told_apart_too_often(n_seeds, spread):
    """Scores are a level, a seed's own part, and the examples' part that all resamples repeat."""
    rng, n_trials, of_examples = np.random.default_rng(5), 600, 0.015
    n_told_apart = 0
    for trial in range(n_trials):
        sides: list[Estimate] = []
        for _ in range(2):
            scores = 0.8 + rng.normal(0, spread, n_seeds) + rng.normal(0, of_examples)
            resampled_scores = scores[:, None] + rng.normal(0, of_examples, 200)
            sides.append(estimate("accuracy", scores, resampled_scores, None, 0.95))
        n_told_apart += difference(sides[0], sides[1], 0.95, seed=trial).p < 0.05
    # More than 49 of 600 at a probability of 0.05 have the binomial probability 4e-4.
    assert stats.binom.sf(49, n_trials, 0.05) < 5e-4
    assert n_told_apart <= 49


def rejections(gap: float, n_trials: int = 400, n: int = 300) -> int:
    """How often two methods with accuracies 0.7 and 0.7 + gap are told apart at 0.05."""
    rng = np.random.default_rng(17)
    labels, found = np.zeros(n, np.int64), 0
    for trial in range(n_trials):
        a, b = (rng.random(n) > right for right in (0.7, 0.7 + gap))
        found += paired_bootstrap("accuracy", labels, a, b, n_resamples=400, seed=trial).p < 0.05
    return found


@pytest.mark.deep
def test_equal_methods_are_told_apart_about_as_often_as_the_level_says():
    # Of 400 trials that reject with probability 0.05, fewer than 6 and more than 36 have the binomial
    # probabilities 5e-5 and 3e-4.
    low, high = 6, 36
    assert stats.binom.cdf(low - 1, 400, 0.05) < 1e-4
    assert stats.binom.sf(high, 400, 0.05) < 5e-4
    assert low <= rejections(0.0) <= high


@pytest.mark.deep
def test_a_large_difference_is_found():
    # Standard error of the difference: sqrt((0.7 x 0.3 + 0.85 x 0.15) / 300) = 0.0335, so 0.15 is 4.47 of
    # them, and a test at 1.96 finds it with probability P(Z > -2.51) = 0.994.
    assert stats.binom.cdf(385, 400, 0.994) < 1e-6
    assert rejections(0.15) > 385


@pytest.mark.deep
def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(400):
        predictions = rng.random(400) > 0.8
        found = bootstrap_interval(
            "accuracy", np.zeros(400), predictions, n_resamples=400, seed=trial
        )
        covered += found.low <= 0.8 <= found.high
    # Of 400 intervals with coverage 0.95, fewer than 362 and more than 394 have the binomial probabilities
    # 7e-5 and 5e-5.
    assert stats.binom.cdf(361, 400, 0.95) < 1e-4
    assert stats.binom.sf(394, 400, 0.95) < 1e-4
    assert 362 <= covered <= 394


def test_a_seed_more_of_the_same_predictions_changes_nothing():
    labels, predictions = example_data("accuracy", np.random.default_rng(0))
    once = bootstrap_interval("accuracy", labels, predictions[0])
    thrice = bootstrap_interval("accuracy", labels, predictions[[0, 0, 0]])
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high), abs=1e-12)
    assert once.value == pytest.approx(thrice.value)


@pytest.mark.parametrize(
    ("metric", "labels", "predictions", "says"),
    [
        ("accuracy", np.zeros(3), np.zeros(2), "2 predictions for 3 labels"),
        ("accuracy", np.zeros(1), np.zeros(1), "at least two examples"),
        ("spearman", np.zeros(2), np.array([0.1, np.nan]), "1 labels or predictions of 2"),
        ("f1", np.array([0, 1, 2]), np.zeros(3), "there are 3 classes"),
        (
            "bleu",
            np.zeros(2),
            np.zeros(2),
            "'bleu' cannot be resampled; there are accuracy, f1, mcc",
        ),
    ],
)
def test_what_cannot_be_resampled_is_refused(metric, labels, predictions, says):
    with pytest.raises(InputError, match=says):
        bootstrap_interval(metric, labels, predictions)


def test_the_documents_of_one_query_are_drawn_together():
    """Each query's answers are alike, so that there are as many observations as queries, not as pairs."""
    draw = np.random.default_rng(0)
    n_queries, n_each = 50, 38
    covered = 0
    for trial in range(60):
        shares = draw.beta(0.5, 0.5, n_queries)  # of right answers, by query
        ranks = np.where(draw.random((n_queries, n_each)) < shares[:, None], 1.0, 2.0)
        queries = np.repeat(np.arange(n_queries), n_each)
        together = units("mrr", queries)
        itself, values = resample("mrr", ranks.ravel(), ranks.ravel()[None], 400, trial, together)
        assert itself[0] == pytest.approx((1 / ranks).mean())
        low, high = np.quantile(values[0], [0.025, 0.975])
        covered += low <= 0.75 <= high  # half of the answers are right on average
    assert covered >= 50, "57 of 60; over pairs drawn one by one 21"
    # A pair more of every kind is no more evidence.
    twice = np.repeat(ranks.ravel(), 2)
    _, more = resample("mrr", twice, twice[None], 400, trial, units("mrr", np.repeat(queries, 2)))
    assert np.allclose(more, values)


def test_one_query_alone_cannot_be_drawn_and_other_metrics_draw_examples():
    ranks = np.ones(4)
    with pytest.raises(InputError, match="all 4 examples are of one query"):
        resample("mrr", ranks, ranks[None], 100, 0, units("mrr", ["q"] * 4))
    assert units("accuracy", ["q", "q", "r"]) is None
    assert units("mrr", ["q", "r", "q"]).tolist() == [0, 1, 0]


@pytest.mark.parametrize(("n", "level", "needed"), [(100, 0.99, 200), (1000, 0.999, 2000)])
def test_resamples_too_few_for_any_difference_are_refused(n: int, level: float, needed: int):
    with pytest.raises(ValidationError, match=f"no difference .* give at least {needed}"):
        BootstrapConfig(n_resamples=n, level=level)
    assert BootstrapConfig(n_resamples=needed, level=level).n_resamples == needed


def test_the_level_of_a_test_is_what_the_interval_leaves():
    assert BootstrapConfig().alpha == 0.05
    for wrong in ({"n_resamples": 10}, {"level": 1.0}, {"seed": -1}, {"b": 1}):
        with pytest.raises(ValidationError):
            BootstrapConfig.model_validate(wrong)


@pytest.mark.parametrize("metric", ["spearman", "spearman_pearson", "average_precision"])
def test_predictions_are_sorted_once_however_many_resamples_there_are(metric: str, monkeypatch):
    labels, predictions = example_data(metric, np.random.default_rng(6))
    if metric == "average_precision":
        labels = (labels > np.median(labels)).astype(float)
    labels, predictions = labels.astype(float), predictions.astype(float)
    n = len(labels)
    monkeypatch.setattr(resampling, "_CELLS_AT_A_TIME", 2 * n)
    parts = [resampled(metric, labels, predictions, counts) for counts in draws(n, 40, seed=0)]
    sorted_sizes: list[int] = []
    argsort = np.argsort

    def counted(values: np.ndarray, **how: str) -> np.ndarray:
        sorted_sizes.append(len(values))
        return argsort(values, **how)

    monkeypatch.setattr(np, "argsort", counted)
    _, values = resample(metric, labels, predictions, 40, seed=0)
    assert len(sorted_sizes) <= 1 + len(predictions)
    assert np.array_equal(values, np.concatenate(parts, axis=1))
