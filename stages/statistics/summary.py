"""Statistics of the rows of one array, and the map that whitens them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from permafrost.stages.embed.config import WhiteningConfig
from permafrost.stages.embed.whitening import Whitening, whitening_of
from permafrost.stages.statistics.moments import Moments
from permafrost.storage.errors import InputError


@dataclass(frozen=True)
class ArrayStatistics:
    """Of the finite rows of an array. What needs more rows than there are is None."""

    n_rows: int
    n_not_finite: int
    """Rows with a number that is NaN or infinite, which count nowhere else."""
    n_zero: int
    """Rows of zeros."""
    norm: float | None
    """Mean Euclidean norm."""
    norm_deviation: float | None
    """Standard deviation of norms."""
    cosine: float | None
    """Mean cosine of two different rows, 0 where directions are spread evenly (Ethayarajh 2019 calls it
    anisotropy; there it is of sampled pairs, here of all). Rows of zeros are left out."""
    effective_rank: float | None
    """Exponential of the entropy of the shares of variance (Roy and Vetterli 2007)."""
    first_share: float | None
    """Share of the variance along the first principal direction."""
    components_90: int | None
    """Principal directions that hold 90 % of the variance."""
    largest: float | None
    """Largest absolute number."""
    largest_column: int | None
    """Its column."""


def statistics_of(moments: Moments) -> ArrayStatistics:
    """Statistics from sums over rows; variances divide by n."""
    n = moments.n_rows
    counts = (n, moments.n_not_finite, moments.n_zero)
    if n == 0:
        return ArrayStatistics(*counts, *(None,) * 8)
    norm = moments.norms / n
    n_directions = n - moments.n_zero
    pairs = n_directions * (n_directions - 1)
    directions = moments.directions
    column = int(moments.largest.argmax())
    shares = _shares(moments)
    return ArrayStatistics(
        *counts,
        norm=norm,
        norm_deviation=float(np.sqrt(max(moments.norms_squared / n - norm**2, 0.0))),
        cosine=float((directions @ directions - n_directions) / pairs) if pairs else None,
        effective_rank=None if shares is None else float(np.exp(_entropy(shares))),
        first_share=None if shares is None else float(shares[0]),
        components_90=None
        if shares is None
        else int(np.searchsorted(np.cumsum(shares), 0.9 - 1e-12) + 1),
        largest=float(moments.largest[column]),
        largest_column=column,
    )


def whitening(moments: Moments, config: WhiteningConfig) -> Whitening:
    """The map that takes rows to principal directions of variance 1, as `embed` fits it on train.

    Raises:
        InputError: too few rows, all rows equal, or more components than they can have directions.
    """
    if not moments.n_rows:
        raise InputError(
            "there is no row whose numbers are all finite, so there is nothing to whiten"
        )
    mean, covariance = _mean_and_covariance(moments)
    return whitening_of(config, mean, covariance, moments.n_rows, "rows")


def _mean_and_covariance(
    moments: Moments,
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    mean = moments.total / moments.n_rows
    return mean, moments.products / moments.n_rows - np.outer(mean, mean)


def _shares(moments: Moments) -> Float[np.ndarray, " d"] | None:
    """Shares of variance by principal direction, the largest first; None without variance."""
    mean, covariance = _mean_and_covariance(moments)
    variances = np.maximum(np.linalg.eigvalsh(covariance)[::-1], 0)
    # What is below the rounding of the squares that were added up is no variance.
    floor = np.finfo(np.float64).eps * moments.norms_squared / moments.n_rows * len(mean)
    if variances[0] <= floor:
        return None
    return variances / variances.sum()


def _entropy(shares: Float[np.ndarray, " d"]) -> float:
    present = shares[shares > 0]
    return float(-(present * np.log(present)).sum())
