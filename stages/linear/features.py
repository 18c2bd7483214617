"""What a linear classifier sees of an example.

Axes: n examples of s texts, d width of a vector, f of what is seen.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

from permafrost.stages.linear.config import PairFeatures


def pair_inputs(
    first: Float[np.ndarray, "n d"], second: Float[np.ndarray, "n d"], features: PairFeatures
) -> Float[np.ndarray, "n f"]:
    """Two vectors u and v as one row: [u, v, |u - v|, u * v], or [u, v]."""
    if features == "concat":
        return np.hstack([first, second])
    return np.hstack([first, second, np.abs(first - second), first * second])


def inputs(
    sides: Sequence[Float[np.ndarray, "n d"]], features: PairFeatures
) -> Float64[np.ndarray, "n f"]:
    """Rows of a classifier, in float64, for examples of one or of two vectors."""
    wide = [np.asarray(side, np.float64) for side in sides]
    return wide[0] if len(wide) == 1 else pair_inputs(wide[0], wide[1], features)
