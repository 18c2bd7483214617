"""Choosing layers by their scores, such as those of development pairs."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.config import CHOSEN_LAYERS, EmbedConfig
from permafrost.stages.embed.layers import combine_vectors
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.storage.errors import InputError

_TOGETHER = EmbedConfig(layers="auto")


def best_together(
    layers: Sequence[int], score: Callable[[tuple[int, ...]], float], most: int | None = None
) -> tuple[int, ...]:
    """The layers that score best together, ascending.

    Every layer is scored alone, the layers are ranked by that, and of the prefixes of the ranking the one is
    taken that scores best. Ties go to fewer layers, and in the ranking to the lower layer.

    Args:
        layers: to choose from.
        score: of layers together, which are given in ascending order.
        most: the longest prefix that is tried; 1 for the best single layer, None for all of them.
    """
    alone = {k: score((k,)) for k in layers}
    ranking = sorted(layers, key=lambda k: (-alone[k], k))
    best, best_score = (ranking[0],), alone[ranking[0]]
    for n in range(2, len(ranking[:most]) + 1):
        chosen = tuple(sorted(ranking[:n]))
        if (value := score(chosen)) > best_score:
            best, best_score = chosen, value
    return best


def choose_layers(
    vectors: Mapping[int, Vectors],
    pairs: Int64[np.ndarray, "m 2"],
    gold: Float64[np.ndarray, " m"],
    config: EmbedConfig = _TOGETHER,
) -> tuple[int, ...]:
    """The layers whose combined vectors agree best with graded development pairs, ascending.

    Scores are correlations of cosines and gold scores; see `best_together`.

    Value Aggregation (section 4.2) names its data, which none of its 14 tasks is scored on, draws the scores
    of single layers on it by kind of task (figure 3), and chooses in words: layers that do consistently well
    in retrieval, without those that repeatedly hurt other kinds. It prints no threshold and no number of
    layers. This rule, on the pairs of one task, is ours; `choose_by_tasks` applies it to the scores of any
    tasks.

    Args:
        vectors: per layer, one vector per development text.
        pairs: rows of `vectors` that belong together.
        gold: their graded scores.
        config: how layers will be combined, whether to one of them, and by which correlation.

    Raises:
        InputError: fewer than two pairs, gold scores that are all equal, a vector of zeros, or cosines that
            are all equal in every layer.
    """
    require_scores(gold)
    correlation = {"pearson": pearson, "spearman": spearman}[config.chosen_by]
    alone: dict[int, float | None] = {}

    def score(chosen: tuple[int, ...]) -> float:
        if len(chosen) == 1:
            (k,) = chosen
            alone[k] = _score(vectors[k], pairs, gold, correlation, f"layer {k}")
            return _rank_value(alone[k])
        # In the order in which they will be combined.
        together = combine_vectors((vectors[k] for k in chosen), config.combine)
        where = f"the layers {[*chosen]} together"
        return _rank_value(_score(together, pairs, gold, correlation, where))

    best = best_together([*vectors], score, CHOSEN_LAYERS.get(config.layers))
    if all(value is None for value in alone.values()):
        raise InputError(
            f"no layer of {', '.join(map(str, alone))} tells the {len(gold)} development pairs apart: all "
            f"their cosines are equal (a first token that is the same in every text, for example); choose "
            f"another method"
        )
    return best


def require_scores(gold: Float64[np.ndarray, " m"]) -> None:
    """Check that scores put development pairs into an order.

    Raises:
        InputError: fewer than two pairs, or gold scores that are all equal.
    """
    if len(gold) < 2 or np.all(gold == gold[0]):
        raise InputError(
            f"layers are chosen by a correlation, but the {len(gold)} development pairs have "
            f"{len(np.unique(gold))} different score(s); give pairs with at least two"
        )


def _rank_value(score: float | None) -> float:
    """Cosines that are all equal order nothing, which is worse than any order that is not reversed."""
    return 0.0 if score is None else score


def _score(
    vectors: Vectors,
    pairs: Int64[np.ndarray, "m 2"],
    gold: Float64[np.ndarray, " m"],
    correlation: Callable[[NDArray[np.float64], NDArray[np.float64]], float],
    where: str,
) -> float | None:
    """The correlation of cosines and gold; None where all cosines are equal."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1)
    paired = pairs.ravel()
    usable = np.isfinite(lengths[paired]) & (lengths[paired] > 0)
    if not usable.all():
        text = int(paired[usable.argmin()])
        raise InputError(
            f"development text {text} has a vector of zeros or of non-finite numbers in {where}, so it has "
            f"no cosine; choose another method or other layers"
        )
    left, right = (wide[pairs[:, side]] / lengths[pairs[:, side], None] for side in (0, 1))
    # Rounded, so that equal texts do not differ by the order of additions.
    cosines = np.round(np.sum(left * right, axis=1), 12)
    if np.all(cosines == cosines[0]):
        return None
    return correlation(cosines, gold)
