"""Confidence intervals of test scores, and tests of whether two methods differ by more than chance.

Two sources of variation are sampled. Test examples are resampled with replacement; all predictions of a
comparison share every resample, and the metric of a method is the mean over its seeds. Variation over seeds
is added to each resample: the standard error of the mean over seeds times a draw from Student's t with the
degrees of freedom of the seeds, in a comparison those of Welch and Satterthwaite. Resampling two or three
seeds with replacement instead would give only half or two thirds of their variance and no tails, so that
equal methods would be declared different far too often. A method with one seed adds nothing: its interval is
about the choice of examples alone, given the head as it was trained.

Disagreement between seeds on single examples counts twice, in the resamples and in the spread of the scores,
so the tests are conservative. Where examples are few, resamples vary too little: their deviations from the
score are widened, and p is no smaller than that of the most extreme exchange of answers
(`stages.metrics.few_examples`).

Source: percentile interval, B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, section
13.3; paired bootstrap, P. Koehn, Statistical Significance Tests for Machine Translation Evaluation,
EMNLP 2004. We differ: Koehn's test is one-sided, ours is two-sided and adds one to either count
(A. Davison and D. Hinkley, Bootstrap Methods and their Application, 1997, section 4.2); and Koehn's systems
have no seeds. Degrees of freedom: B. Welch, The Generalization of Student's Problem when Several
Different Population Variances are Involved, Biometrika 1947.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS
from permafrost.stages.metrics.few_examples import SeedAnswers, smallest_p, widening
from permafrost.stages.metrics.resampling import CORRELATIONS, draws, resampler
from permafrost.storage.errors import InputError

_ROUNDING = 1e-12
"""Differences of a metric below this are due to rounding."""


class BootstrapConfig(BaseModel):
    """How test sets are resampled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_resamples: int = Field(default=2000, ge=100, le=MAX_STEPS)
    """Number of resamples."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, other resamples."""
    level: float = Field(default=0.95, gt=0, lt=1)
    """Coverage of the intervals; a difference counts as significant if p is below 1 - level."""

    @model_validator(mode="after")
    def _something_can_be_significant(self) -> "BootstrapConfig":
        needed = math.floor(2 / self.alpha + 1e-9)  # the smallest p is 2 / (n_resamples + 1)
        if self.n_resamples < needed:
            raise ValueError(
                f"n_resamples is {self.n_resamples}, of which no p is below {self.alpha:g} (level "
                f"{self.level:g}), so that no difference would ever be significant; give at least {needed}"
            )
        return self

    @property
    def alpha(self) -> float:
        """Significance level: the share of true null hypotheses that a test may reject."""
        return round(1 - self.level, 12)


@dataclass(frozen=True)
class Estimate:
    """The metric of one method: the mean over its seeds, and its variation."""

    value: float
    """On the test set itself."""
    values: Float64[np.ndarray, " b"]
    """On every resample, its deviations from the value widened where examples are few."""
    error: float = 0.0
    """Standard error of the mean over seeds; 0 for a single seed."""
    freedom: float = np.inf
    """Degrees of freedom of that error."""
    bounds: tuple[float, float] = (-np.inf, np.inf)
    """Smallest and largest possible value of the metric."""
    answers: tuple[SeedAnswers, ...] = ()
    """Of each task that it is a mean of; empty if not known."""

    def has_answers_of(self, other: "Estimate") -> bool:
        """Whether both are of the same predictions: the same fits, or as good as, so that other seeds would
        have been the same ones, too."""
        if not self.answers or len(self.answers) != len(other.answers):
            return False
        return all(
            np.array_equal(mine.predictions, theirs.predictions)
            for mine, theirs in zip(self.answers, other.answers, strict=True)
        )


@dataclass(frozen=True)
class Interval:
    """A percentile interval of a metric."""

    value: float
    """On the test set itself; the mean over seeds."""
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """Metric of one method minus that of another on the same examples, or on the same tasks."""

    value: float
    low: float
    high: float
    p: float
    """Two-sided."""
    over: Literal["examples", "tasks"] = "examples"
    """What was taken as a sample of more of its kind."""


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
        metric: one of `stages.metrics.resampling.METRICS`.
        labels: `[n]`; class indices, scores, or, for `mrr`, anything.
        predictions: `[n]`, or `[n_seeds, n]` for the mean over seeds.
        n_resamples: number of resamples.
        seed: of the resampling.
        level: coverage.

    Raises:
        InputError: see `resample`.
    """
    predictions_KN = np.atleast_2d(predictions)
    resampled_scores = resample(metric, labels, predictions_KN, n_resamples, seed)
    return interval(
        estimate(metric, *resampled_scores, SeedAnswers(predictions_KN), level), level, seed
    )


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
    """Metric of a minus metric of b, both on the same resamples; for the arguments see `bootstrap_interval`.

    Raises:
        InputError: see `resample`.
    """
    a, b = (
        estimate(
            metric,
            *resample(metric, labels, of_seeds, n_resamples, seed),
            SeedAnswers(of_seeds),
            level,
        )
        for of_seeds in map(np.atleast_2d, (predictions_a, predictions_b))
    )
    return difference(a, b, level, seed)


def resample(
    metric: str,
    labels: NDArray[Any],
    predictions: NDArray[Any],
    n_resamples: int,
    seed: int,
    together: NDArray[np.int64] | None = None,
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, "k b"]]:
    """A metric of k predictions on the test set, and on resamples that all of them share.

    Args:
        metric: see `stages.metrics.resampling.resampler`.
        labels: `[n]`.
        predictions: `[k, n]`.
        n_resamples: number of resamples.
        seed: of the resampling.
        together: `[n]`, a number for each example; those with the same one are drawn together. None: each is
            drawn for itself.

    Raises:
        InputError: there are fewer than two examples, all are drawn together, the numbers of predictions and
            labels differ, or a value is not finite; see also `stages.metrics.resampling.resampler`.
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
    group = np.arange(n) if together is None else together
    if (n_groups := int(group.max()) + 1) < 2:
        raise InputError(
            f"all {n} examples are of one query, so that nothing can be drawn; resampling needs two queries"
        )
    values_of = resampler(metric, truth, answers_KN)
    itself = values_of(np.ones((n, 1)))[:, 0]
    parts = [values_of(counts[group]) for counts in draws(n_groups, n_resamples, seed)]
    return itself, np.concatenate(parts, axis=1)


def estimate(
    metric: str,
    values_K: Float64[np.ndarray, " k"],
    values_KB: Float64[np.ndarray, "k b"],
    answers: SeedAnswers | None,
    level: float,
) -> Estimate:
    """The estimate from k seeds of one method.

    Args:
        metric: see `resample`.
        values_K: on the test set, as `resample` returns them of these answers.
        values_KB: on the resamples.
        answers: None if not known, as if examples were many.
        level: of intervals and tests that are made of it.
    """
    n_seeds = len(values_K)
    error = float(np.std(values_K, ddof=1)) / n_seeds**0.5 if n_seeds > 1 else 0.0
    # Scores that differ only in their last bits count as equal.
    is_spread = error > _ROUNDING
    wider = 1.0 if answers is None else widening(answers.n_drawn, level)
    value = float(values_K.mean())
    return Estimate(
        value=value,
        values=value + wider * (values_KB.mean(axis=0) - value),
        error=error if is_spread else 0.0,
        freedom=n_seeds - 1 if is_spread else np.inf,
        bounds=(-1.0, 1.0) if metric in CORRELATIONS else (0.0, 1.0),
        answers=() if answers is None else (answers,),
    )


def interval(estimated: Estimate, level: float, seed: int) -> Interval:
    """The percentile interval of resampled values with variation over seeds, within the metric's bounds."""
    low, high = _percentiles(_with_seeds(estimated, seed), level)
    return Interval(estimated.value, max(low, estimated.bounds[0]), min(high, estimated.bounds[1]))


def difference(a: Estimate, b: Estimate, level: float, seed: int) -> Difference:
    """Metric of a minus metric of b, both on the same resamples, with variation over seeds, within what the
    bounds of the metric leave; none at all where both are of the same predictions.

    p is twice the smaller of (1 + number of values at or below 0) / (1 + number of values) and the same
    at or above 0, at most 1, and no smaller than the examples with different answers allow.
    """
    if a.has_answers_of(b):
        return Difference(0.0, 0.0, 0.0, 1.0)
    errors = np.array([a.error, b.error]) ** 2
    between = Estimate(
        value=a.value - b.value,
        values=a.values - b.values,
        error=float(errors.sum() ** 0.5),
        freedom=float(errors.sum() ** 2 / (errors**2 / [a.freedom, b.freedom]).sum())
        if errors.any()
        else np.inf,
        bounds=(a.bounds[0] - b.bounds[1], a.bounds[1] - b.bounds[0]),
    )
    values = _with_seeds(between, seed)
    reach = interval(between, level, seed)
    tails = (values <= _ROUNDING).sum(), (values >= -_ROUNDING).sum()
    p = min(1.0, 2 * float(1 + min(tails)) / (1 + len(values)))
    if a.answers and b.answers:
        pairs = zip(a.answers, b.answers, strict=True)
        p = max(p, smallest_p(sum(mine.n_differing(theirs) for mine, theirs in pairs)))
    return Difference(between.value, reach.low, reach.high, p)


def _with_seeds(estimated: Estimate, seed: int) -> NDArray[np.float64]:
    """Resampled values, each with a draw of the variation over seeds added and, mirrored, subtracted."""
    from scipy.special import stdtrit

    if not estimated.error:
        return estimated.values
    shares = np.random.default_rng([seed, len(estimated.values)]).uniform(
        size=len(estimated.values)
    )
    shift = estimated.error * stdtrit(estimated.freedom, shares)
    # Both signs, so that swapping two methods only changes the sign of the result.
    return np.concatenate([estimated.values + shift, estimated.values - shift])


def _percentiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
