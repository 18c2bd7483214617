"""The files of results: their names, columns and fields, shared by the stages that write and read them.

Predictions, example scores and vector maps have modules of their own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

Role = Literal["method", "baseline", "control"]
"""A control lacks what a method is said to live on: it gets nothing from which the answer can be learnt, so
that it must be at chance, or all but one part, such as the graph of the text. It is never the best. A
baseline does not use the backbone, and is what a method has to beat."""

METRICS = "metrics.json"

HISTORY = "history.parquet"
EPOCHS = pa.schema(
    [
        pa.field("epoch", pa.int64()),
        pa.field("train_loss", pa.float64()),
        pa.field("dev_metric", pa.float64()),
    ]
)
"""Columns of the history of a fit, one row per epoch."""
CANDIDATE_EPOCHS = pa.schema(
    [
        pa.field("candidate", pa.int64()),
        pa.field("candidate_json", pa.string()),
        *map(EPOCHS.field, EPOCHS.names),
    ]
)
"""The same for a grid: one row per candidate and epoch, with the candidate's settings."""
ALIGNMENT = "alignment.parquet"
ALIGNED = pa.schema([pa.field("epoch", pa.int64()), pa.field("distance", pa.float64())])
"""Columns of `alignment.parquet` beside the history of a fit with two branches, one row per epoch: the mean
Euclidean distance on dev between the two embeddings of an item, both of unit length."""
LAYER_EPOCHS = pa.schema(
    [
        pa.field("epoch", pa.int64()),
        pa.field("layer", pa.int64()),
        pa.field("train_mse", pa.float64()),
        pa.field("dev_mse", pa.float64()),
    ]
)
"""Columns of the history of a pretraining, one row per epoch and layer."""
ELSEWHERE = "elsewhere.parquet"
LAYER_EPOCHS_ELSEWHERE = pa.schema(
    [
        pa.field("epoch", pa.int64()),
        pa.field("layer", pa.int64()),
        pa.field("mse", pa.float64()),
    ]
)
"""Columns of the errors of a pretraining on texts of another task, one row per epoch and layer."""

TOKEN_WEIGHTS = "token_weights.parquet"
WEIGHTED_TEXTS = pa.schema(
    [
        pa.field("text", pa.int64()),
        pa.field("digest", pa.string()),
        pa.field("weights", pa.list_(pa.float32())),
    ]
)
"""Columns of `token_weights.parquet`, one row per text: its index in the corpus, its digest, and a weight per
token."""
CHOSEN_WEIGHTS = "chosen_weights.parquet"
"""The same for texts that the report names, of another corpus than the one that is scored."""

POINTS = pa.schema(
    [
        pa.field("axis", pa.string()),
        pa.field("measure", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("x", pa.float64()),
        pa.field("at", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("chosen", pa.bool_()),
    ]
)
"""Columns of a probe's `points.parquet`, one row per value. `unit` is `share` (shown in percent) or `number`;
`at` is the name of the position x; `chosen` marks the position chosen on dev."""


class TextsInTrain(BaseModel):
    """How many of an evaluation task's texts in one role are in train or dev."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_texts: int
    """Distinct texts of the task."""
    n_in_train: int
    """Those that the method was trained on, or chosen on."""


class Metrics(BaseModel):
    """The content of `metrics.json` for any method that can be reported."""

    # Not "forbid": a scorer may record more than a report shows.
    model_config = ConfigDict(frozen=True, extra="ignore")

    metric: str
    dev: float | None
    """None if the corpus has no dev split, so that nothing was chosen on it."""
    test: float
    n_dev: int
    n_test: int
    majority: float | None = None
    """Test accuracy of always predicting the most frequent class; None if there are no classes, as where
    choices are scored each for itself."""
    guess: float | None = None
    """Of multiple choice: expected test accuracy of a guess, the mean over questions of 1 / the number of
    choices. None for other tasks."""
    n_drawn_test: int | None = None
    """Of multiple choice: test questions whose answer was drawn among different choices with equal scores;
    None for other tasks, or of a result that does not say."""
    class_balance: dict[str, float] | None = None
    """Share of each class in test; None if labels are not classes."""
    overlap: float | None = None
    """Share of test examples with a text that is in train; None without a train split."""
    n_clean_test: int | None = None
    """Number of the other test examples."""
    clean_test: float | None = None
    """The metric on these; None if there are too few."""
    test_in_dev: float | None = None
    """Share of test examples that are in dev too; None without dev, or of a result that does not say."""
    dev_in_train: float | None = None
    """The same of dev in train."""
    texts_in_train: dict[str, TextsInTrain] | None = None
    """For an evaluation, by role; None for a method without training, and for other results."""
    choice: dict[str, str | int | float | bool | None] = {}
    """What was chosen on dev: layer, hyper-parameters, epoch."""
    n_parameters: int
    converged: bool | None = None
    """Whether the solver needed fewer steps than it may take; None if there is none or it is unknown."""


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write metrics.json; the fields of `Metrics`, and any others.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(metrics, indent=2, allow_nan=False) + "\n"
    (folder / METRICS).write_text(text, encoding="utf-8")
