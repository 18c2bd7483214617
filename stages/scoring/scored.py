"""What is scored of a trained head, how much of it is kept, and what comes of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_STEPS, MAX_TEXTS
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.splits import require_rivals, require_spread
from permafrost.stages.metrics.predictions import PREDICTIONS
from permafrost.stages.metrics.records import CHOSEN_WEIGHTS, TOKEN_WEIGHTS, write_metrics
from permafrost.stages.metrics.vector_map import MAP_TEXTS, VECTOR_MAP
from permafrost.stages.scoring.answers import SPLITS


class ScoreConfig(BaseModel):
    """How a trained head is scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_weight_texts: int = Field(default=128, ge=0, le=MAX_TEXTS)
    """Maximum number of texts whose token weights are kept; they are spread evenly over test, which may be
    sorted by source or class."""
    n_map_texts: int = Field(default=MAP_TEXTS, ge=0, le=MAX_TEXTS)
    """Maximum number of texts on the map of vectors, spread over test likewise; for single texts with
    classes."""
    batch_size: int = Field(default=64, ge=1, le=MAX_STEPS)
    """Texts per batch; changes results by rounding only (about 1e-6 of a logit)."""


@dataclass(frozen=True)
class ScoreResult:
    """Metrics, one prediction per example, and token weights of a few texts."""

    metrics: dict[str, Any]
    """Those of `answer_metrics`, choice and n_parameters."""
    predictions: pa.Table
    """See `predictions_table` and `identified`.

    By task: the class and, with two classes, the probability of class 1; the cosine, without a score; the
    rank of the partner (the label is the ideal rank, 1) and its similarity."""
    token_weights: pa.Table | None
    """Columns text, digest, weights; None for a head without token weights, or on one row per text."""
    vectors: pa.Table | None = None
    """See `vector_map`: vectors of test texts; None unless single texts have classes."""
    chosen_weights: pa.Table | None = None
    """Columns as `token_weights`: those of texts of another corpus; None where there is none."""

    def save(self, folder: Path) -> None:
        """Write metrics.json, predictions.parquet and, if any, token_weights.parquet, map.parquet and
        chosen_weights.parquet."""
        write_metrics(folder, self.metrics)
        pq.write_table(self.predictions, folder / PREDICTIONS)
        if self.token_weights is not None:
            pq.write_table(self.token_weights, folder / TOKEN_WEIGHTS)
        if self.vectors is not None:
            pq.write_table(self.vectors, folder / VECTOR_MAP)
        if self.chosen_weights is not None:
            pq.write_table(self.chosen_weights, folder / CHOSEN_WEIGHTS)


def scored_examples(data: FitData) -> dict[str, Examples]:
    """The dev and test examples.

    Raises:
        InputError: there are no dev or test examples, all scores are equal, or all pairs have the same second
            text.
    """
    examples = {name: data.split(name) for name in SPLITS}
    for split in examples.values():
        if data.task == "similarity":
            require_spread(split)
        if data.task == "unlabelled":
            require_rivals(split)
    return examples
