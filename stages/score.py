"""Score a trained head on dev and test, and show where it looks.

Dev and test are scored with their true labels, also for a head that was trained on shuffled ones.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field

from stages.fit import FitData, LoadedHead, evaluate, majority_rate, per_text, to_tensors
from storage.errors import InputError


class ScoreConfig(BaseModel):
    """What is scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_weight_texts: int = Field(default=8, ge=0)
    """Token weights are kept for this many texts, the first of test."""
    batch_size: int = Field(default=64, ge=1)
    """Texts at a time; changes results by rounding only (about 1e-6 of a logit)."""


@dataclass(frozen=True)
class ScoreResult:
    """Metrics, one prediction per example, and token weights of a few texts."""

    metrics: dict[str, Any]
    predictions: pa.Table
    """split, text, label, prediction, score: the probability of class 1 of two, else null."""
    token_weights: pa.Table | None
    """text, digest, weights: None for a head that has none."""

    def save(self, folder: Path) -> None:
        """Write metrics.json, predictions.parquet and, where there are weights, token_weights.parquet."""
        text = json.dumps(self.metrics, indent=2, allow_nan=False) + "\n"
        (folder / "metrics.json").write_text(text, encoding="utf-8")
        pq.write_table(self.predictions, folder / "predictions.parquet")
        if self.token_weights is not None:
            pq.write_table(self.token_weights, folder / "token_weights.parquet")


def score(config: ScoreConfig, head: LoadedHead, data: FitData, device: str = "cpu") -> ScoreResult:
    """Score `head` on the dev and test examples of a corpus.

    Args:
        config: how much is kept.
        head: a trained head.
        data: features and examples with the classes that the head knows.
        device: where to compute, for example "cuda".

    Raises:
        InputError: no dev or no test examples, other classes, features of another width.
    """
    reader = data.reader(head.layer)
    if reader.width != head.d_in:
        raise InputError(
            f"the head was trained on vectors {head.d_in} wide, {head.layer} is {reader.width} wide; "
            "score it on features of the backbone it was trained on"
        )
    if data.label_names != head.label_names:
        raise InputError(
            f"the head knows the classes {', '.join(head.label_names)}, the corpus has "
            f"{', '.join(data.label_names)}; score it on a corpus with its own classes"
        )
    place = torch.device(device)
    # A copy: the caller's head stays where it is.
    mover = LoadedHead(head.config, head.d_in, head.label_names, head.epoch, head.dev)
    mover.load_state_dict(head.state_dict())
    mover.to(place)
    metric = head.config.metric
    tables: list[pa.Table] = []
    scores: dict[str, float] = {}
    splits = {name: data.split(name) for name in ("dev", "test")}
    for name, split in splits.items():
        logits = per_text(reader.subset(split.texts), config.batch_size, place, mover.logits)
        chosen = logits.argmax(dim=1).numpy()
        shares = logits.double().softmax(dim=1)[:, 1].numpy() if logits.shape[1] == 2 else None
        scores[name] = evaluate(metric, split.labels, chosen)
        tables.append(
            pa.table(
                {
                    "split": pa.array([name] * len(split), pa.string()),
                    "text": pa.array(split.texts, pa.int64()),
                    "label": pa.array(split.labels.astype(np.float64), pa.float64()),
                    "prediction": pa.array(chosen.astype(np.float64), pa.float64()),
                    "score": pa.nulls(len(split), pa.float64())
                    if shares is None
                    else pa.array(shares, pa.float64()),
                }
            )
        )
    metrics = {
        "metric": metric,
        "dev": scores["dev"],
        "test": scores["test"],
        "n_dev": len(splits["dev"]),
        "n_test": len(splits["test"]),
        "majority": majority_rate(splits["test"].labels),
        "choice": head.choice,
        "n_parameters": head.n_parameters,
    }
    shown = np.array(list(dict.fromkeys(splits["test"].texts.tolist())), dtype=np.int64)
    weights = _weights(mover, data, shown[: config.n_weight_texts], place)
    return ScoreResult(metrics, pa.concat_tables(tables), weights)


def _weights(
    head: LoadedHead, data: FitData, texts: np.ndarray, place: torch.device
) -> pa.Table | None:
    if not len(texts):
        return None
    rows: list[np.ndarray] = []
    # One text at a time: their number is small, and their batch need not fit.
    for _, features in data.reader(head.layer).subset(texts).in_order(1):
        weights = head.token_weights(*to_tensors(features, place))
        if weights is None:
            return None
        rows.append(weights.cpu().numpy())
    return pa.table(
        {
            "text": pa.array(texts, pa.int64()),
            "digest": pa.array([data.digests[text] for text in texts], pa.string()),
            "weights": pa.array([row.tolist() for row in rows], pa.list_(pa.float32())),
        }
    )
