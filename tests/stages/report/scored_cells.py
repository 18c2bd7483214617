"""Results on disk whose predictions give their scores."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from permafrost.stages.fit import Metric, evaluate
from permafrost.stages.metrics.predictions import PREDICTIONS, predictions_table
from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import Cell

DEV = 0.5


def scored_cell(
    folder: Path,
    method: str,
    labels: np.ndarray,
    predictions: np.ndarray,
    *,
    task: str = "t",
    seed: int = 0,
    metric: Metric = "accuracy",
    role: Role = "method",
    dev: float | None = DEV,
    scores: np.ndarray | None = None,
    sides: Sequence[np.ndarray] | None = None,
    **more: Any,
) -> Cell:
    """A cell with these answers on test; its texts are 0, 1, ... unless `sides` says otherwise."""
    at = folder / f"{task}-{method}-{seed}".replace("/", "_")
    at.mkdir(parents=True)
    metrics = {
        "metric": metric,
        "dev": dev,
        "test": evaluate(metric, labels, predictions),
        "n_dev": 0 if dev is None else 10,
        "n_test": len(labels),
        "n_parameters": 1,
        **more,
    }
    (at / "metrics.json").write_text(json.dumps(metrics))
    texts = [np.arange(len(labels))] if sides is None else sides
    table = predictions_table("test", texts, labels, predictions, scores)
    pq.write_table(table, at / PREDICTIONS)
    return Cell(method, task, seed, role, at, None, f"score/{method}-{task}-{seed}")


def answers(right: float, labels: np.ndarray, seed: int) -> np.ndarray:
    """Answers to two classes of which a share, to the nearest count, is right."""
    places = np.random.default_rng(seed).permutation(len(labels))
    return np.where(places < round(right * len(labels)), labels, 1 - labels)


def two_classes(n: int) -> np.ndarray:
    """As many of one class as of the other."""
    return np.arange(n) % 2
