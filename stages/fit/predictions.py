"""What a trained head, or anything that stands beside one, answers to examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """One answer per example, to compare with its label: a class, a cosine, or the rank of the partner."""

    values: NDArray[Any]
    scores: NDArray[np.float64] | None
    """Probability of class 1 of two, or similarity to the partner; else None."""
    probabilities: NDArray[np.float64] | None = None
    """Of every class, `[n, n_classes]`; None where answers are not classes, or have none."""
