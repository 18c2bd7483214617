"""One logistic regression and one rank correlation for all of stages."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from permafrost.stages.fit.logistic import best_regression, logistic_regression
from permafrost.stages.metrics.correlations import spearman

STAGES = Path(__file__).parents[3] / "stages"


def _examples(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 3))
    return rows, (rows[:, 0] + rng.normal(size=n) > 0).astype(np.int64)


@pytest.mark.parametrize(
    ("what", "where"),
    [("LogisticRegression(", "fit/logistic.py"), ("spearmanr(", "metrics/correlations.py")],
)
def test_each_stands_in_one_place(what: str, where: str) -> None:
    assert [p for p in STAGES.rglob("*.py") if what in p.read_text()] == [STAGES / where]


def test_a_regression_is_that_of_scikit_learn() -> None:
    rows, labels = _examples()
    expected = LogisticRegression(C=0.3, max_iter=5000).fit(rows, labels)
    found = logistic_regression(rows, labels, 0.3)
    assert np.array_equal(found.coef_, expected.coef_)


def test_the_strength_that_is_best_on_dev_is_kept_and_of_equal_ones_the_smallest() -> None:
    rows, labels = _examples()
    asked: list[float] = []

    def dev(model: LogisticRegression) -> float:
        asked.append(model.C)
        return {0.1: 0.5, 1.0: 0.7, 10.0: 0.7}[model.C]

    chosen = best_regression(rows, labels, (10.0, 0.1, 1.0), dev)
    assert asked == [0.1, 1.0, 10.0]
    assert (chosen.c, chosen.dev, chosen.model.C) == (1.0, 0.7, 1.0)


@pytest.mark.parametrize("side", [0, 1])
def test_a_constant_side_has_no_rank_correlation(side: int) -> None:
    sides = [np.ones(5), np.random.default_rng(0).random(5)]
    assert spearman(sides[side], sides[1 - side]) == 0
