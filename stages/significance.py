"""How far a test score can be trusted, and whether two methods differ by more than chance.

Test examples are resampled with replacement; all predictions of a comparison share every resample. With
several seeds the metric of a method is the mean over its seeds within each resample: intervals and
tests are about the examples, given the heads as they were trained. What another training would give is
the spread over seeds, which stands beside them.

Source: percentile interval, B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, section
13.3; paired bootstrap, P. Koehn, Statistical Significance Tests for Machine Translation Evaluation,
EMNLP 2004. We differ: Koehn counts in one direction, here both tails count, and one is added to either
count (A. Davison and D. Hinkley, Bootstrap Methods and their Application, 1997, section 4.2).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stages.bounds import MAX_SEED, MAX_STEPS
from stages.resampled_metrics import draws, resampled
from storage.errors import InputError

_ROUNDING = 1e-12
"""Differences of a metric below this are rounding."""


class BootstrapConfig(BaseModel):
    """How test sets are resampled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_resamples: int = Field(default=2000, ge=100, le=MAX_STEPS)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    level: float = Field(default=0.95, gt=0, lt=1)
    """Coverage of the intervals; a difference counts as significant if p is below 1 - level."""

    @property
    def alpha(self) -> float:
        """Share of true null hypotheses that a test may reject."""
        return round(1 - self.level, 12)


@dataclass(frozen=True)
class Interval:
    """A percentile interval of a metric."""

    value: float
    """On the test set itself; the mean over seeds."""
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the distance between the two ends."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """Metric of one method less that of another on the same examples."""

    value: float
    low: float
    high: float
    p: float
    """Two-sided."""


def bootstrap_interval(
    metric: str,
    labels: NDArray[Any],
    predictions: NDArray[Any],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of a metric over resampled test examples.

    Args:
        metric: one of `stages.resampled_metrics.METRICS`.
        labels: `[n]`; class indices, scores, or, for `mrr`, anything.
        predictions: `[n]`, or `[n_seeds, n]` for the mean over seeds.
        n_resamples: how often the examples are drawn.
        seed: of the draws.
        level: coverage.

    Raises:
        InputError: as of `resample`.
    """
    value, values_B = _mean_over_seeds(metric, labels, predictions, n_resamples, seed)
    return interval(value, values_B, level)


def paired_bootstrap(
    metric: str,
    labels: NDArray[Any],
    predictions_a: NDArray[Any],
    predictions_b: NDArray[Any],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Difference:
    """Metric of a less metric of b, both on the same resamples; arguments as of `bootstrap_interval`.

    Raises:
        InputError: as of `resample`.
    """
    value_a, a_B = _mean_over_seeds(metric, labels, predictions_a, n_resamples, seed)
    value_b, b_B = _mean_over_seeds(metric, labels, predictions_b, n_resamples, seed)
    return difference(value_a - value_b, a_B - b_B, level)


def resample(
    metric: str, labels: NDArray[Any], predictions: NDArray[Any], n_resamples: int, seed: int
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, "k b"]]:
    """A metric of k predictions on the test set, and on resamples that all of them share.

    Args:
        metric: as of `stages.resampled_metrics.resampled`.
        labels: `[n]`.
        predictions: `[k, n]`.
        n_resamples: how many resamples.
        seed: of the draws.

    Raises:
        InputError: fewer than two examples, another number of predictions than labels, a value that is
            not finite, or as of `stages.resampled_metrics.resampled`.
    """
    truth, answers_KN = labels.astype(np.float64), predictions.astype(np.float64)
    n = len(truth)
    if answers_KN.shape[1] != n or n < 2:
        raise InputError(
            f"there are {answers_KN.shape[1]} predictions for {n} labels; resampling needs one for each of "
            "at least two examples"
        )
    if not (np.isfinite(truth).all() and np.isfinite(answers_KN).all()):
        wrong = int((~np.isfinite(truth)).sum() + (~np.isfinite(answers_KN)).sum())
        raise InputError(
            f"{wrong} labels or predictions of {n} examples are not finite, so no metric of theirs can be "
            "resampled; find out what made them"
        )
    itself = resampled(metric, truth, answers_KN, np.ones((n, 1)))[:, 0]
    parts = [resampled(metric, truth, answers_KN, c) for c in draws(n, n_resamples, seed)]
    return itself, np.concatenate(parts, axis=1)


def interval(value: float, values: Float64[np.ndarray, " b"], level: float) -> Interval:
    """The percentile interval of resampled values."""
    low, high = _percentiles(values, level)
    return Interval(value, low, high)


def difference(value: float, values: Float64[np.ndarray, " b"], level: float) -> Difference:
    """The percentile interval of resampled differences, and whether they keep their sign.

    p is twice the smaller of (1 + number of resamples at or below 0) / (1 + number of resamples) and the
    same at or above 0, at most 1.
    """
    low, high = _percentiles(values, level)
    tails = (values <= _ROUNDING).sum(), (values >= -_ROUNDING).sum()
    p = min(1.0, 2 * float(1 + min(tails)) / (1 + len(values)))
    return Difference(value, low, high, p)


def _mean_over_seeds(
    metric: str, labels: NDArray[Any], predictions: NDArray[Any], n_resamples: int, seed: int
) -> tuple[float, NDArray[np.float64]]:
    itself, values_KB = resample(metric, labels, np.atleast_2d(predictions), n_resamples, seed)
    return float(itself.mean()), values_KB.mean(axis=0)


def _percentiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
