"""Scores of each layer's vectors on a task, and the layer that dev would choose."""

from collections.abc import Sequence

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import Features
from permafrost.stages.extraction.capture import Index
from permafrost.stages.probes.curves import Point, ProbeCurves, first_best
from permafrost.stages.probes.linear_probe import (
    LinearProbe,
    TaskScore,
    require_scorable,
    score_task,
)
from permafrost.stages.probes.stored import PooledLayers, place, stored_vectors
from permafrost.storage.progress import Progress


class TaskScoreConfig(PooledLayers, LinearProbe):
    """Which vectors to score layer by layer, and how."""


def probe_task(
    config: TaskScoreConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> ProbeCurves:
    """Dev and test score of every layer separately.

    The layer with the highest dev score is chosen, the lowest of equal ones; its test score is the result of
    an automatic choice. The test scores of the other layers describe the backbone; choosing among them would
    be choosing on test.

    Raises:
        InputError: the corpus cannot be scored, or the backbone does not have a layer.
    """
    require_scorable(config, corpus)
    sizes = prompt_features[0].sizes
    scores: list[tuple[Index, TaskScore]] = []
    for layer, vectors in stored_vectors(config, prompt_features, progress):
        scores.append((layer, score_task(config, vectors, corpus)))
    kept = first_best([score.dev for _, score in scores])
    points = [
        Point(
            f"{split} {score.metric}",
            "share",
            place(layer, sizes),
            str(layer),
            value,
            i == kept,
        )
        for i, (layer, score) in enumerate(scores)
        for split, value in (("dev", score.dev), ("test", score.test))
    ]
    return ProbeCurves("layer", tuple(points))
