"""Running one task with mteb."""

from pathlib import Path
from typing import Any

import mteb
from mteb.abstasks import AbsTask
from sklearn.base import clone

from permafrost.stages.mteb_evaluation.encoder import (
    PermafrostEncoder,
    VectorsOf,
    silence_bars,
)
from permafrost.stages.mteb_evaluation.hub import parts_of

BATCH_TEXTS = 1024
"""Texts per batch of mteb's loaders; vectors do not depend on it."""


def run_task(
    task: AbsTask, vectors: VectorsOf, method: str, identity: str, predictions: Path
) -> Any:
    """Run a task; returns all of mteb's scores: for each split one row per subset.

    Args:
        task: with its data loaded.
        vectors: embeds the task's texts.
        method: display name of the method.
        identity: digest of everything that determines the vectors.
        predictions: folder to which mteb writes its predictions.
    """
    silence_bars()
    for part in parts_of(task):
        if hasattr(part, "evaluator_model"):
            # The classifier is an attribute of mteb's class, so tasks that run in parallel would share it.
            part.evaluator_model = clone(part.evaluator_model)  # pyright: ignore[reportAttributeAccessIssue]
    encoder: Any = PermafrostEncoder(vectors, method, identity)
    results = mteb.evaluate(
        encoder,
        task,
        co2_tracker=False,
        cache=None,
        show_progress_bar=False,
        encode_kwargs={"batch_size": BATCH_TEXTS, "show_progress_bar": False},
        prediction_folder=predictions,
    )
    return results.task_results[0].scores
