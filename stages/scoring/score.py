"""Score a trained head on dev and test, and record its token weights.

Dev and test are scored with their true labels, even for a head that was trained on shuffled ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_STEPS, MAX_TEXTS
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.splits import require_rivals, require_spread
from permafrost.stages.metrics.predictions import PREDICTIONS
from permafrost.stages.metrics.records import TOKEN_WEIGHTS, WEIGHTED_TEXTS, write_metrics
from permafrost.stages.metrics.vector_map import MAP_TEXTS, VECTOR_MAP, spread_evenly, vector_map
from permafrost.stages.scoring.answers import SPLITS, answer_metrics, answers_table
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch

    from permafrost.stages.fit.predictions import Predictions
    from permafrost.stages.fit.trained import LoadedHead


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

    def save(self, folder: Path) -> None:
        """Write metrics.json, predictions.parquet and, if any, token_weights.parquet and map.parquet."""
        write_metrics(folder, self.metrics)
        pq.write_table(self.predictions, folder / PREDICTIONS)
        if self.token_weights is not None:
            pq.write_table(self.token_weights, folder / TOKEN_WEIGHTS)
        if self.vectors is not None:
            pq.write_table(self.vectors, folder / VECTOR_MAP)


def score(config: ScoreConfig, head: LoadedHead, data: FitData, device: str = "cpu") -> ScoreResult:
    """Score `head` on the dev and test examples of a corpus.

    Args:
        config: how much to keep.
        head: a trained head.
        data: features and examples of the kind, and with the classes, that the head was trained on.
        device: where to compute, for example "cuda".

    Raises:
        InputError: there are no dev or test examples; the kind of corpus, the classes or the width of
            features differ; all scores are equal, or all pairs have the same second text.
    """
    import torch

    from permafrost.stages.fit.run import predict
    from permafrost.stages.fit.sources import source_of

    _require_same(head, data)
    reader = data.reader(head.layer)
    torch_device = torch.device(device)
    # A copy, so that the caller's head stays on its device.
    moved = copy.deepcopy(head).to(torch_device)
    answered: dict[str, tuple[Examples, Predictions]] = {}
    for name, split in scored_examples(data).items():
        source = source_of(split, reader)
        answered[name] = split, predict(moved.model, source, config.batch_size, torch_device)
    metrics = {
        **answer_metrics(head.config.metric, data, answered),
        "choice": head.choice,
        "n_parameters": head.n_parameters,
    }
    texts = _spread(answered["test"][0], config.n_weight_texts)
    weights = _weights(moved, data, texts, config.batch_size, torch_device)
    vectors = _map(moved, data, answered["test"][0], config, torch_device)
    return ScoreResult(metrics, answers_table(data, answered), weights, vectors)


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


def _require_same(head: LoadedHead, data: FitData) -> None:
    """Check that the head was trained on this kind of corpus, these classes and this width of features."""
    width = data.reader(head.layer).width
    if width != head.d_in:
        raise InputError(
            f"the head was trained on vectors {head.d_in} wide, {head.layer} is {width} wide; "
            "score it on features of the backbone it was trained on"
        )
    if data.task != head.facts.task:
        raise InputError(
            f"the head was trained on a corpus of kind {quoted(head.facts.task)}, this one is of kind "
            f"{quoted(data.task)}; score it on a corpus of its own kind"
        )
    if data.label_names != head.label_names:
        raise InputError(
            f"the head knows the classes {', '.join(head.label_names)}, the corpus has "
            f"{', '.join(data.label_names)}; score it on a corpus with its own classes"
        )


def _spread(test: Examples, n_texts: int) -> NDArray[np.int64]:
    """Texts of examples that are spread evenly over a split, each once, in its order."""
    n_sides = len(test.sides)
    picked = spread_evenly(len(test), n_texts // n_sides)
    texts = np.stack(test.sides, axis=1)[picked].ravel()
    return np.array(list(dict.fromkeys(texts.tolist())), dtype=np.int64)


def _weights(
    head: LoadedHead, data: FitData, texts: np.ndarray, batch_size: int, device: torch.device
) -> pa.Table | None:
    from permafrost.stages.fit.sources import to_tensors

    if not len(texts):
        return None
    rows: list[np.ndarray] = []
    for _, features in data.reader(head.layer).subset(texts).in_order(batch_size):
        weights = head.token_weights(*to_tensors(features, device))
        if weights is None:
            return None
        rows += np.split(weights.cpu().numpy(), features.offsets[1:-1])
    return pa.table(
        {
            "text": texts,
            "digest": [data.digests[text] for text in texts],
            "weights": [row.tolist() for row in rows],
        },
        schema=WEIGHTED_TEXTS,
    )


def _map(
    head: LoadedHead, data: FitData, test: Examples, config: ScoreConfig, device: torch.device
) -> pa.Table | None:
    from permafrost.stages.fit.sources import to_tensors

    picked = spread_evenly(len(test), config.n_map_texts)
    if data.task != "classification" or not len(picked):
        return None
    texts = test.texts[picked]
    batches = data.reader(head.layer).subset(texts).in_order(config.batch_size)
    rows = [head.embed(*to_tensors(features, device)).cpu().numpy() for _, features in batches]
    return vector_map(texts, test.labels[picked], np.concatenate(rows))
