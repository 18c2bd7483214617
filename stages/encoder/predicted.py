"""What a trained head says of texts: classes with their probabilities, or scores of pairs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Float64, Int64


@dataclass(frozen=True)
class PredictedClasses:
    """A class for each text or pair of texts."""

    class_names: tuple[str, ...]
    """As the corpus names them, in its order."""
    classes: Int64[np.ndarray, " n"]
    """The predicted class: its number among `class_names`."""
    probabilities: Float32[np.ndarray, "n n_classes"] | None
    """None for a support vector machine, which has none."""

    @cached_property
    def names(self) -> list[str]:
        """The name of the predicted class."""
        return [self.class_names[number] for number in self.classes.tolist()]

    @cached_property
    def scores(self) -> Float32[np.ndarray, " n"] | None:
        """The probability of the predicted class."""
        if self.probabilities is None:
            return None
        return self.probabilities[np.arange(len(self.classes)), self.classes]


@dataclass(frozen=True)
class PredictedScores:
    """A score for each pair of texts."""

    scores: Float64[np.ndarray, " n"]
    """In the units of the labels that the head was trained on, whose range it was told: the lowest and the
    highest label of train, or `label_range` of a head on every layer."""
    similarities: Float64[np.ndarray, " n"]
    """What `predictions.parquet` has as the prediction: the cosine or, of a head on every layer, a number
    from 0 to 1, from which the score follows by that range."""


Predicted = PredictedClasses | PredictedScores
