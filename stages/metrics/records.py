"""The files of results: their names, columns and fields, for the stages that write them and what reads them.

Predictions, scores of examples and maps of vectors have modules of their own beside this one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

Role = Literal["method", "baseline", "control"]
"""A control is given nothing from which the answer can be learnt: it must sit at chance. A baseline sees no
backbone, and is what a method has to beat."""

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
"""The same where a grid was searched: one row per candidate and epoch, the candidates written out."""
LAYER_EPOCHS = pa.schema(
    [
        pa.field("epoch", pa.int64()),
        pa.field("layer", pa.int64()),
        pa.field("train_mse", pa.float64()),
        pa.field("dev_mse", pa.float64()),
    ]
)
"""Columns of the history of a pretraining, one row per epoch and layer."""

TOKEN_WEIGHTS = "token_weights.parquet"
WEIGHTED_TEXTS = pa.schema(
    [
        pa.field("text", pa.int64()),
        pa.field("digest", pa.string()),
        pa.field("weights", pa.list_(pa.float32())),
    ]
)
"""Its columns, one row per text: its number in the corpus, its digest, and a weight per token."""

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
"""Columns of the `points.parquet` of a probe, one row per number. `unit` is `share` (shown times 100) or
`number`; `at` is what the place x is called; `chosen` marks the place that dev chose."""


class TextsInTrain(BaseModel):
    """Texts of an evaluation task in one role."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_texts: int
    """Different ones that the task asked for."""
    n_in_train: int
    """Of these, what the method was trained on."""


class Metrics(BaseModel):
    """What `metrics.json` holds of any method that can be reported."""

    # Not "forbid": a scorer may record more than a report shows.
    model_config = ConfigDict(frozen=True, extra="ignore")

    metric: str
    dev: float | None
    """None where the corpus has no dev split: nothing was chosen on it."""
    test: float
    n_dev: int
    n_test: int
    majority: float | None = None
    """Test accuracy of always answering the commonest class; None where that means nothing."""
    class_balance: dict[str, float] | None = None
    """Share of each class in test; None where labels are no classes."""
    overlap: float | None = None
    """Share of test examples with a text that train has; None without a train split."""
    n_clean_test: int | None = None
    """The other test examples."""
    clean_test: float | None = None
    """The metric on these; None where they are too few to tell."""
    texts_in_train: dict[str, TextsInTrain] | None = None
    """Of an evaluation, by role; None of a method without training, and of other results."""
    choice: dict[str, str | int | float | bool | None] = {}
    """What was chosen on dev: layer, hyper-parameters, epoch."""
    n_parameters: int


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write metrics.json; the fields of `Metrics`, and any others.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(metrics, indent=2, allow_nan=False) + "\n"
    (folder / METRICS).write_text(text, encoding="utf-8")
