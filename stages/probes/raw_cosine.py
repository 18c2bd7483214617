"""Correlation of each layer's plain cosines with the labels of graded pairs, on every split.

Source: FREEZE!, figure 1, which shows Pearson on the training pairs; its notebooks for GPT-2 centre latents.
We differ: Spearman, dev and test stand beside it, and no layer is chosen.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import Features
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.probes.stored import PooledLayers, place, stored_vectors
from permafrost.stages.scoring.similarity import require_graded
from permafrost.storage.progress import Progress

_CORRELATIONS = {"Pearson": pearson, "Spearman": spearman}
_ROUNDING = 1e-12
"""Cosines of float32 vectors that differ by less count as equal."""


class RawCosineConfig(PooledLayers):
    """Whose vectors are compared."""

    scale: Literal["none", "centred"] = "none"
    """`centred`: every vector minus the mean of its own numbers, first."""


def probe_raw_cosine(
    config: RawCosineConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> ProbeCurves:
    """Pearson and Spearman by layer and split; 0 where all cosines are equal.

    Raises:
        InputError: the corpus has no graded pairs, or the backbone does not have a layer.
    """
    require_graded(corpus)
    sizes = prompt_features[0].sizes
    points: list[Point] = []
    for layer, stored in stored_vectors(config, prompt_features, progress):
        vectors = stored.astype(np.float64)
        if config.scale == "centred":
            vectors -= vectors.mean(axis=1, keepdims=True)
        for split in corpus.splits:
            pairs = corpus.split(split)
            first, second = (pairs.column(c).to_numpy() for c in ("text", "text_pair"))
            cosines = _cosines(vectors, first, second)
            labels = pairs.column("label").to_numpy().astype(np.float64)
            points += [
                Point(
                    f"{split} {name}",
                    "share",
                    place(layer, sizes),
                    str(layer),
                    correlate(cosines, labels) if np.ptp(cosines) > _ROUNDING else 0.0,
                )
                for name, correlate in _CORRELATIONS.items()
            ]
    return ProbeCurves("layer", tuple(points))


def _cosines(
    vectors: Float64[np.ndarray, "n_texts d"],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> Float64[np.ndarray, " n"]:
    """Of pairs of rows; a vector of zeros has the cosine 0 with any other."""
    squares = np.einsum("td,td->t", vectors, vectors)
    products = np.einsum("pd,pd->p", vectors[first], vectors[second])
    # One square root of the product: a row with itself has a cosine of exactly 1, so that equal texts tie.
    lengths = np.sqrt(squares[first] * squares[second])
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
