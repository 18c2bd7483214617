"""Sums over rows from which statistics follow; sums of parts add up to that of the whole.

Axes: n rows, d width.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

ROWS_AT_A_TIME = 8192
"""Rows that are widened to float64 together."""


@dataclass(frozen=True)
class Moments:
    """Sums over the finite rows of an array, in float64."""

    n_rows: int
    """Rows all of whose numbers are finite; the sums are of these."""
    n_not_finite: int
    """Rows with a number that is NaN or infinite."""
    total: Float[np.ndarray, " d"]
    products: Float[np.ndarray, "d d"]
    """Sum of the outer products of rows with themselves."""
    directions: Float[np.ndarray, " d"]
    """Sum of the rows over their norms; rows of zeros add nothing."""
    n_zero: int
    """Rows of zeros."""
    norms: float
    """Sum of norms."""
    norms_squared: float
    largest: Float[np.ndarray, " d"]
    """Largest absolute number of each column."""

    def __add__(self, other: "Moments") -> "Moments":
        """Those of both parts."""
        return Moments(
            n_rows=self.n_rows + other.n_rows,
            n_not_finite=self.n_not_finite + other.n_not_finite,
            total=self.total + other.total,
            products=self.products + other.products,
            directions=self.directions + other.directions,
            n_zero=self.n_zero + other.n_zero,
            norms=self.norms + other.norms,
            norms_squared=self.norms_squared + other.norms_squared,
            largest=np.maximum(self.largest, other.largest),
        )


def no_moments(width: int) -> Moments:
    """Those of no rows."""
    zeros = np.zeros(width)
    return Moments(0, 0, zeros, np.zeros((width, width)), zeros, 0, 0.0, 0.0, zeros)


def moments_of(rows: NDArray[np.floating]) -> Moments:
    """The moments of rows `[n, d]` of any floating dtype."""
    n, width = rows.shape
    found = no_moments(width)
    for at in range(0, n, ROWS_AT_A_TIME):
        found = found + _moments(rows[at : at + ROWS_AT_A_TIME])
    return found


def _moments(rows: NDArray[np.floating]) -> Moments:
    finite = np.isfinite(rows).all(axis=1)
    wide = rows[finite].astype(np.float64)
    if not len(wide):
        return Moments(**{**vars(no_moments(rows.shape[1])), "n_not_finite": len(rows)})
    norms = np.linalg.norm(wide, axis=1)
    is_zero = norms == 0
    return Moments(
        n_rows=len(wide),
        n_not_finite=int((~finite).sum()),
        total=wide.sum(axis=0),
        products=wide.T @ wide,
        directions=(1 / np.where(is_zero, 1, norms)) @ wide,
        n_zero=int(is_zero.sum()),
        norms=float(norms.sum()),
        norms_squared=float((norms**2).sum()),
        largest=np.abs(wide).max(axis=0),
    )
