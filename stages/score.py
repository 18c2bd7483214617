"""Score a trained head on dev and test, and show where it looks.

Dev and test are scored with their true labels, also for a head that was trained on shuffled ones. Next to
the score on test stands the one on its clean part: the examples of which no text occurs in train, neither
as a first nor as a second one (of the 1,379 test pairs of STS-B, 249 are not clean).
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stages.fit import (
    METRICS,
    Examples,
    FitData,
    LoadedHead,
    Metric,
    Predictions,
    evaluate,
    majority_rate,
    predict,
    require_rivals,
    require_spread,
    source_of,
    to_tensors,
)
from storage.errors import InputError

_SPLITS = ("dev", "test")


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
    """metric, dev, test, n_dev, n_test, choice, n_parameters; majority and class_balance of test, null
    where labels are no classes; overlap, n_clean_test and clean_test, null without a train split, and
    the last also where the clean part is too small to tell; `{dev,test}_{metric}` for every metric of
    the task."""
    predictions: pa.Table
    """split, text, label, prediction, score; of pairs also text_b behind text.

    By task: the class and, of two, the probability of class 1; the cosine, without a score; the rank of
    the partner (the label is the 1 that is wanted) and its similarity."""
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
        data: features and examples of the kind, and with the classes, that the head knows.
        device: where to compute, for example "cuda".

    Raises:
        InputError: no dev or no test examples, another kind of corpus, other classes, features of
            another width, scores that are all equal or pairs that are all of one second text.
    """
    _require_same(head, data)
    reader = data.reader(head.layer)
    place = torch.device(device)
    # A copy: the caller's head stays where it is.
    mover = copy.deepcopy(head).to(place)
    metric = head.config.metric
    found: dict[str, tuple[Examples, Predictions]] = {}
    for name in _SPLITS:
        split = data.split(name)
        if data.task == "similarity":
            require_spread(split)
        if data.task == "unlabelled":
            require_rivals(split)
        source = source_of(split, reader)
        found[name] = split, predict(mover.model, source, config.batch_size, place)
    test = found["test"][0]
    metrics = {
        "metric": metric,
        **{n: evaluate(metric, s.labels, p.values) for n, (s, p) in found.items()},
        **{f"n_{n}": len(s) for n, (s, _) in found.items()},
        "majority": majority_rate(test.labels) if data.label_names else None,
        "class_balance": _balance(test, data),
        **_overlap(metric, data, *found["test"]),
        **{
            f"{n}_{other}": evaluate(other, s.labels, p.values)
            for n, (s, p) in found.items()
            for other in METRICS[data.task]
            if other != "f1" or len(data.label_names) == 2
        },
        "choice": head.choice,
        "n_parameters": head.n_parameters,
    }
    texts = np.stack(test.sides, axis=1).ravel()
    shown = np.array(list(dict.fromkeys(texts.tolist())), dtype=np.int64)
    weights = _weights(mover, data, shown[: config.n_weight_texts], place)
    tables = [_table(examples, answers) for examples, answers in found.values()]
    return ScoreResult(metrics, pa.concat_tables(tables), weights)


def _require_same(head: LoadedHead, data: FitData) -> None:
    """Check that the head was made for this kind of corpus, its classes and its features."""
    width = data.reader(head.layer).width
    if width != head.d_in:
        raise InputError(
            f"the head was trained on vectors {head.d_in} wide, {head.layer} is {width} wide; "
            "score it on features of the backbone it was trained on"
        )
    if data.task != head.facts.task:
        raise InputError(
            f"the head was trained on a corpus of kind {head.facts.task!r}, this one is of kind "
            f"{data.task!r}; score it on a corpus of its own kind"
        )
    if data.label_names != head.label_names:
        raise InputError(
            f"the head knows the classes {', '.join(head.label_names)}, the corpus has "
            f"{', '.join(data.label_names)}; score it on a corpus with its own classes"
        )


def _balance(test: Examples, data: FitData) -> dict[str, float] | None:
    """Share of each class in test."""
    if not data.label_names:
        return None
    counts = np.bincount(test.labels, minlength=len(data.label_names))
    return dict(zip(data.label_names, (counts / len(test)).tolist(), strict=True))


def _overlap(
    metric: Metric, data: FitData, test: Examples, answers: Predictions
) -> dict[str, float | int | None]:
    """Share of test examples with a text that train has, and the metric on the others."""
    train = data.examples.filter(pc.field("split") == "train")
    if not train.num_rows:
        return {"overlap": None, "n_clean_test": None, "clean_test": None}
    seen = [train.column(side).drop_null().to_numpy() for side in ("text", "text_pair")]
    known = np.isin(np.stack(test.sides), np.concatenate(seen)).any(axis=0)
    labels, values = test.labels[~known], answers.values[~known]
    # Of equal scores there is no correlation, and of none no metric.
    telling = len(labels) > 0 and (data.task != "similarity" or np.ptp(labels) > 0)
    return {
        "overlap": float(known.mean()),
        "n_clean_test": len(labels),
        "clean_test": evaluate(metric, labels, values) if telling else None,
    }


def _table(examples: Examples, answers: Predictions) -> pa.Table:
    n = len(examples)
    sides = dict(zip(("text", "text_b"), examples.sides, strict=False))
    return pa.table(
        {
            "split": pa.array([examples.split] * n, pa.string()),
            **{name: pa.array(side, pa.int64()) for name, side in sides.items()},
            "label": _floats(examples.labels),
            "prediction": _floats(answers.values),
            "score": pa.nulls(n, pa.float64())
            if answers.scores is None
            else _floats(answers.scores),
        }
    )


def _floats(values: NDArray[Any]) -> pa.Array:
    return pa.array(values.astype(np.float64), pa.float64())


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
