"""What the rows of a feature store look like, by array: moments, principal directions, whitening."""

from permafrost.stages.statistics.moments import Moments, moments_of, no_moments
from permafrost.stages.statistics.summary import ArrayStatistics, statistics_of, whitening

__all__ = ["ArrayStatistics", "Moments", "moments_of", "no_moments", "statistics_of", "whitening"]
