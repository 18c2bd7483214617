"""Columns of vectors that hold nothing but the rounding of float16, in which features are stored."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

_ROUNDING, _LEAST = 2.0**-11, 2.0**-25
"""Half of float16's spacing, as a share of a number, and that of the smallest numbers."""


def is_rounding(sides: Sequence[Float[np.ndarray, "n d"]]) -> Bool[np.ndarray, " d"]:
    """The columns of vectors that are constant up to the rounding of float16, on every side.

    Divided by its deviation, the rounding of a stored column that says nothing (the last layer of MiniLM has
    one) would weigh as much as any other column, and a vector that was not stored would get another answer.
    """
    found = np.ones(sides[0].shape[1], np.bool_)
    for rows in sides:
        mean = rows.mean(axis=0, dtype=np.float64)
        deviation = rows.std(axis=0, dtype=np.float64)
        rounding = np.maximum(np.sqrt(mean**2 + deviation**2) * _ROUNDING, _LEAST)
        found &= deviation <= rounding
    return found
