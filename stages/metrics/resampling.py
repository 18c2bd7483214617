"""Metrics of many resamples of one test set at once.

A resample is a vector of how often each example is drawn. All predictions on a test set share the draws, and
a metric of all resamples takes a few matrix products or cumulative sums; no resample is sorted, and the test
set itself only once.

Axes: b resamples, k predictions of the same examples, n examples, c classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Counts = Float64[np.ndarray, "n b"]
"""How often each example is drawn, as whole numbers; each resample sums to n, but where examples are drawn
together."""

METRICS = frozenset({"accuracy", "mcc", "f1", "spearman", "pearson", "spearman_pearson", "mrr"})
"""Metrics that can be resampled: those of `stages.fit.evaluate`."""
CORRELATIONS = frozenset({"mcc", "spearman", "pearson", "spearman_pearson"})
"""Metrics in -1..1; all others are in 0..1."""

_CELLS_AT_A_TIME = 1 << 18
"""Small enough for a processor's cache."""
_ROUNDING = 1e-13
"""Deviations from a mean below this share of the largest value are due to rounding."""


def draws(n_examples: int, n_resamples: int, seed: int) -> Iterator[Counts]:
    """Resamples with replacement, in chunks of bounded size; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    n_at_a_time = max(1, _CELLS_AT_A_TIME // n_examples)
    for start in range(0, n_resamples, n_at_a_time):
        n_now = min(n_at_a_time, n_resamples - start)
        drawn_BN = rng.integers(0, n_examples, (n_now, n_examples))
        flat = (drawn_BN * n_now + np.arange(n_now)[:, None]).ravel()
        counts = np.bincount(flat, minlength=n_now * n_examples)
        yield counts.reshape(n_examples, n_now).astype(np.float64)


def units(metric: str, first_texts: NDArray[np.int64] | Sequence[str]) -> NDArray[np.int64] | None:
    """Which examples are drawn together, by number: those of one query, where a query has several relevant
    documents and so several examples (`mrr`); None where each is drawn for itself.

    Args:
        metric: one of `METRICS`.
        first_texts: what stands on the first side of each example.
    """
    if metric != "mrr":
        return None
    return np.unique(np.asarray(first_texts), return_inverse=True)[1].astype(np.int64)


def resampled(
    metric: str, labels: NDArray[np.float64], predictions_KN: NDArray[np.float64], counts_NB: Counts
) -> Float64[np.ndarray, "k b"]:
    """A metric of every prediction on every resample, defined as in `stages.fit.evaluate`.

    Args:
        metric: see `resampler`.
        labels: `[n]`; class indices or scores.
        predictions_KN: classes, scores or ranks.
        counts_NB: the resamples; all ones are the test set itself.

    Raises:
        InputError: the metric is unknown, or it is f1 with more than two classes.
    """
    return resampler(metric, labels, predictions_KN)(counts_NB)


def resampler(
    metric: str, labels: NDArray[np.float64], predictions_KN: NDArray[np.float64]
) -> Callable[[Counts], Float64[np.ndarray, "k b"]]:
    """A function that gives the metric of every prediction on resamples; what does not depend on them, such
    as the order of predictions, is computed here.

    Args:
        metric: one of `METRICS`; `mean` of the predictions, which are then example scores; or
            `average_precision`, of predictions that rank examples with the label 1 first.
        labels: as for `resampled`.
        predictions_KN: as there.

    Raises:
        InputError: the metric is unknown. The function raises one if it is f1 with more than two classes.
    """
    match metric:
        case "accuracy":
            return partial(_mean, predictions_KN == labels)
        case "mean":
            return partial(_mean, predictions_KN)
        case "average_precision":
            ranked = [_Order.of(-predictions) for predictions in predictions_KN]
            return partial(_average_precision, labels, ranked)
        case "mrr":
            return partial(_mean, 1 / predictions_KN)
        case "mcc":
            return partial(_mcc, labels.astype(np.int64), predictions_KN.astype(np.int64))
        case "f1":
            return partial(_f1, labels, predictions_KN)
        case "spearman":
            return _spearman(labels, predictions_KN)
        case "pearson":
            return partial(_pearson, labels, predictions_KN)
        case "spearman_pearson":
            spearman = _spearman(labels, predictions_KN)
            return lambda counts_NB: (
                (spearman(counts_NB) + _pearson(labels, predictions_KN, counts_NB)) / 2
            )
    raise InputError(
        f"metric {quoted(metric)} cannot be resampled; there are {', '.join(sorted(METRICS))}"
    )


@dataclass(frozen=True)
class _Order:
    """The order of examples by value, in groups of equal ones."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Of each group, in the order."""
    group: NDArray[np.int64]
    """Of each example, in the order."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "_Order":
        order = np.argsort(values, kind="stable")
        _, starts, group = np.unique(values[order], return_index=True, return_inverse=True)
        return cls(order, starts, group)


def _mean(values_KN: NDArray[np.generic], counts_NB: Counts) -> NDArray[np.float64]:
    return values_KN.astype(np.float64) @ counts_NB / counts_NB.sum(axis=0)


def _mcc(
    labels: NDArray[np.int64], predictions_KN: NDArray[np.int64], counts_NB: Counts
) -> NDArray[np.float64]:
    n_classes, total = int(max(labels.max(), predictions_KN.max())) + 1, len(counts_NB)
    of_class = np.eye(n_classes)
    truth_CB = of_class[labels].T @ counts_NB
    truth_spread_B = total**2 - (truth_CB**2).sum(axis=0)
    rows: list[NDArray[np.float64]] = []
    for predictions in predictions_KN:
        guess_CB = of_class[predictions].T @ counts_NB
        right_B = (predictions == labels).astype(np.float64) @ counts_NB
        covariance_B = right_B * total - (truth_CB * guess_CB).sum(axis=0)
        guess_spread_B = total**2 - (guess_CB**2).sum(axis=0)
        rows.append(_ratio(covariance_B, np.sqrt(truth_spread_B * guess_spread_B)))
    return np.stack(rows)


def _f1(
    labels: NDArray[np.float64], predictions_KN: NDArray[np.float64], counts_NB: Counts
) -> NDArray[np.float64]:
    highest = int(max(labels.max(), predictions_KN.max()))
    if highest > 1:
        raise InputError(
            f"f1 is that of class 1 of two, but there are {highest + 1} classes; use accuracy or mcc"
        )
    true_N, guess_KN = labels == 1, predictions_KN == 1
    both_KB, guess_KB = ((x.astype(np.float64) @ counts_NB) for x in (guess_KN & true_N, guess_KN))
    return _ratio(2 * both_KB, guess_KB + true_N.astype(np.float64) @ counts_NB)


def _average_precision(
    labels: NDArray[np.float64], ranked: Sequence[_Order], counts_NB: Counts
) -> NDArray[np.float64]:
    """The precision at every threshold, weighted by the recall that is gained there, as in scikit-learn;
    examples with equal predictions pass a threshold together."""
    rows: list[NDArray[np.float64]] = []
    for ranks in ranked:
        drawn_NB, is_one_N = counts_NB[ranks.order], labels[ranks.order] == 1
        taken_GB = np.add.reduceat(drawn_NB, ranks.starts, axis=0)
        found_GB = np.add.reduceat(drawn_NB * is_one_N[:, None], ranks.starts, axis=0)
        hits_GB = np.cumsum(found_GB, axis=0)
        precision_GB = _ratio(hits_GB, np.cumsum(taken_GB, axis=0))
        rows.append(_ratio((precision_GB * found_GB).sum(axis=0), hits_GB[-1]))
    return np.stack(rows)


def _spearman(
    labels: NDArray[np.float64], predictions_KN: NDArray[np.float64]
) -> Callable[[Counts], NDArray[np.float64]]:
    truth, ranked = _Order.of(labels), [_Order.of(p) for p in predictions_KN]

    def correlations(counts_NB: Counts) -> NDArray[np.float64]:
        ranks_NB = _centred_ranks(truth, counts_NB)
        return np.stack(
            [_correlation(ranks_NB, _centred_ranks(p, counts_NB), counts_NB) for p in ranked]
        )

    return correlations


def _pearson(
    labels: NDArray[np.float64], predictions_KN: NDArray[np.float64], counts_NB: Counts
) -> NDArray[np.float64]:
    deviations_NB = _deviations(labels, counts_NB)
    return np.stack(
        [_correlation(deviations_NB, _deviations(p, counts_NB), counts_NB) for p in predictions_KN]
    )


def _centred_ranks(values: _Order, counts_NB: Counts) -> NDArray[np.float64]:
    """Ranks within each resample minus their mean; equal values share the mean of their ranks.

    They are multiples of one half, so that sums of their products are exact.
    """
    sizes_GB = np.add.reduceat(counts_NB[values.order], values.starts, axis=0)
    ranks_GB = np.cumsum(sizes_GB, axis=0) - sizes_GB / 2 - len(counts_NB) / 2
    ranks_NB = np.empty_like(counts_NB)
    ranks_NB[values.order] = ranks_GB[values.group]
    return ranks_NB


def _deviations(values: NDArray[np.float64], counts_NB: Counts) -> NDArray[np.float64]:
    """Values minus their mean in each resample, in units of the largest; zero if all are equal."""
    scaled = values / (np.abs(values).max() or 1.0)
    deviations_NB = scaled[:, None] - scaled @ counts_NB / len(values)
    largest_B = np.abs(deviations_NB).max(axis=0, where=counts_NB > 0, initial=0.0)
    return np.where(largest_B > _ROUNDING, deviations_NB, 0.0)


def _correlation(
    a_NB: NDArray[np.float64], b_NB: NDArray[np.float64], counts_NB: Counts
) -> NDArray[np.float64]:
    weighted_NB = counts_NB * a_NB
    product_B, a_square_B = (np.einsum("nb,nb->b", weighted_NB, x) for x in (b_NB, a_NB))
    b_square_B = np.einsum("nb,nb->b", counts_NB * b_NB, b_NB)
    return np.clip(_ratio(product_B, np.sqrt(a_square_B) * np.sqrt(b_square_B)), -1, 1)


def _ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """`a / b`, or 0 where `b` is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
