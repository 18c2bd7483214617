"""What few test examples can show: where resamples of them say too much.

A resample of n examples varies less than a new draw of n would, and where all of them favour one method no
resample favours the other, however few they are: of three queries a quarter of equal methods would differ
significantly.

Source: the factor, T. Hesterberg, What Teachers Should Know about the Bootstrap, The American Statistician
2015, section 4.4, the expanded percentile interval, which moves the percentiles as far as we move the
resampled values; the smallest p, E. Edgington and P. Onghena, Randomization Tests, 2007: of m examples on
which two methods differ, exchanging their answers on some gives 2^m outcomes that are as likely, and two of
them are the most extreme; the share, C. Clopper and E. Pearson, Biometrika 1934, at 0 of n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SeedAnswers:
    """What the seeds of a method answered, and what of it is drawn into a resample."""

    predictions: NDArray[Any]
    """`[k, n]`."""
    together: NDArray[np.int64] | None = None
    """`[n]`, a number for each example; those with the same one, as of one query, are drawn together. None:
    each is drawn for itself."""

    @property
    def n_drawn(self) -> int:
        """Number of examples, or of queries."""
        if self.together is None:
            return self.predictions.shape[1]
        return len(np.unique(self.together))

    def n_differing(self, other: "SeedAnswers") -> int:
        """On how many of them this and another method, on the same examples, do not all answer the same."""
        every = np.concatenate([self.predictions, other.predictions])
        differs = (every != every[0]).any(axis=0)
        return (
            int(differs.sum()) if self.together is None else len(np.unique(self.together[differs]))
        )


def widening(n: int, level: float) -> float:
    """By what deviations of resampled values from the value are multiplied, so that their percentiles are as
    far from it as Student's t has them: 1.01 for 300 examples, 1.2 for 12, 2.7 for 3.

    Args:
        n: number of examples, or of queries where these are drawn, at least 2.
        level: coverage of the interval.
    """
    from scipy.special import ndtri, stdtrit

    upper = (1 + level) / 2
    return float((n / (n - 1)) ** 0.5 * stdtrit(n - 1, upper) / ndtri(upper))


def smallest_p(n_differing: int) -> float:
    """The smallest two-sided p that so many examples with different answers can give: 0.03 for 6, 1 for 1."""
    return 2.0 ** min(0, 1 - n_differing)


def unseen_share(n: int, level: float) -> float:
    """The largest share of examples that n may show nothing of: 1.2% for 300, 46% for 6."""
    return float(1 - ((1 - level) / 2) ** (1 / n))


def smallest_p_of_two_draws(n: Sequence[int]) -> float:
    """The smallest two-sided p of two methods, each on so many examples of its own: 0.1 for 3 and 3."""
    from scipy.special import comb

    return min(1.0, 2 / float(comb(sum(n), n[0])))
