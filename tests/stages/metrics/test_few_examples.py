"""Test sets of few examples: how often equal methods are told apart, and what equal answers show."""

import itertools

import numpy as np
import pytest
from scipy import stats

from permafrost.stages.metrics.bootstrap import paired_bootstrap
from permafrost.stages.metrics.few_examples import (
    SeedAnswers,
    smallest_p,
    smallest_p_of_two_draws,
    unseen_share,
    widening,
)


def test_three_queries_that_are_slightly_better_prove_nothing():
    a, b = np.array([0.51, 0.62, 0.73]), np.array([0.5, 0.6, 0.7])
    found = paired_bootstrap("mean", np.zeros(3), a, b)
    assert found.p == 0.25, "of eight exchanges two are as extreme"
    assert found.low < 0 < found.high
    assert found.value == pytest.approx(0.02)


@pytest.mark.parametrize("n", [2, 3, 6, 10, 20])
def test_equal_methods_are_told_apart_no_oftener_than_the_level_says(n: int):
    draw, told = np.random.default_rng(n), 0
    for trial in range(400):
        a, b = draw.normal(0.5, 0.1, (2, n))
        told += paired_bootstrap("mean", np.zeros(n), a, b, n_resamples=200, seed=trial).p < 0.05
    # Of 400 trials that reject with probability 0.05, more than 36 have the binomial probability 3e-4.
    assert told <= 36
    if n >= 10:
        assert told >= 6, "nor much more seldom"


def test_coins_that_are_tossed_six_times_are_not_told_apart_too_often():
    draw, told = np.random.default_rng(4), 0
    for trial in range(400):
        a, b = draw.integers(0, 2, (2, 6))
        told += (
            paired_bootstrap("accuracy", np.zeros(6), a, b, n_resamples=200, seed=trial).p < 0.05
        )
    assert told <= 36


def test_what_many_examples_show_stays_as_it_is():
    draw = np.random.default_rng(0)
    a, b = draw.random((2, 1000)) < [[0.9], [0.8]]
    assert paired_bootstrap("accuracy", np.ones(1000), a, b).p < 0.01
    assert widening(1000, 0.95) == pytest.approx(1, abs=3e-3)


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("n", [2, 3, 12, 300])
def test_an_interval_of_a_mean_is_as_wide_as_students(n: int, level: float):
    values = np.random.default_rng(1).normal(size=n)
    normal = stats.norm.ppf((1 + level) / 2) * np.std(values) / n**0.5
    ends = stats.ttest_1samp(values, 0).confidence_interval(level)
    assert widening(n, level) * normal == pytest.approx((ends.high - ends.low) / 2)


def test_the_smallest_p_is_that_of_all_exchanges():
    for n in range(1, 8):
        sums = [sum(signs) for signs in itertools.product((1, -1), repeat=n)]
        assert smallest_p(n) == np.mean(np.abs(sums) >= n)
    assert smallest_p(0) == 1
    found = stats.permutation_test(
        (np.arange(3), np.arange(3) + 9), lambda x, y: np.mean(x) - np.mean(y)
    )
    assert smallest_p_of_two_draws((3, 3)) == found.pvalue


def test_nothing_seen_in_n_examples_may_still_be_there():
    for n in (6, 300):
        exact = stats.binomtest(0, n).proportion_ci(0.95, method="exact")
        assert unseen_share(n, 0.95) == pytest.approx(exact.high)


def test_examples_of_one_query_are_one():
    a, b = np.array([[1, 2, 3, 4], [1, 2, 3, 4]]), np.array([[1, 2, 3, 4], [1, 0, 0, 4]])
    each, queries = SeedAnswers(a), SeedAnswers(a, np.array([0, 1, 1, 2]))
    assert (each.n_drawn, each.n_differing(SeedAnswers(b[1:]))) == (4, 2)
    assert (queries.n_drawn, queries.n_differing(SeedAnswers(b, queries.together))) == (3, 1)
    assert each.n_differing(each) == 0
