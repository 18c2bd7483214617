"""Pair heads on a corpus: training on its graded pairs, scoring on dev and test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32
from pydantic import JsonValue

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.fit.checkpoint import Checkpoint
from permafrost.stages.fit.grid import flat
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.stages.freeze.encoders import PretrainedEncoders
from permafrost.stages.freeze.fit_pairs import fit_pairs, predict
from permafrost.stages.freeze.graded import graded_pairs, scaled_pairs
from permafrost.stages.freeze.pair_fit import PairFitResult, load_pair_fit
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import Scores, predictions_table
from permafrost.stages.scoring.similarity import (
    CORRELATIONS,
    SimilarityConfig,
    overlap_of_pairs,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress


def fit_corpus(
    config: PairFitConfig,
    latents: Float32[np.ndarray, "n l d"],
    corpus: Corpus,
    label_range: tuple[float, float],
    autoencoders: PretrainedEncoders | None,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
) -> PairFitResult:
    """Train a pair head on train, with its epoch chosen on dev; test is read only if its scores by epoch are
    to be kept, which choose nothing.

    Raises:
        InputError: no graded pairs; see also `fit_pairs`.
    """
    train, dev = (graded_pairs(corpus, split, label_range) for split in ("train", "dev"))
    kept = config.test_by_epoch == "kept"
    test = scaled_pairs(corpus, "test", label_range) if kept else None
    return fit_pairs(config, latents, train, dev, autoencoders, progress, device, checkpoint, test)


def score_corpus(
    config: SimilarityConfig,
    folder: Path,
    latents: Float32[np.ndarray, "n l d"],
    corpus: Corpus,
    layers: str | None = None,
) -> Scores:
    """Correlate the predictions of the head in `folder` with the labels of dev and test.

    `metrics` also has the score on the test pairs with neither text in train, their number, and the share of
    the others: STS-B's splits share texts. `self_similarity` is what the head gives a text and itself, the
    same for every text and not 1 (FREEZE!, appendix 10). `layers` are those of `latents` if dev chose them.

    Raises:
        InputError: all predictions are equal.
    """
    result = load_pair_fit(folder)
    head = result.head()
    correlate = CORRELATIONS[config.metric]
    metrics: dict[str, Any] = {"metric": config.metric}
    tables: list[pa.Table] = []
    for split in ("dev", "test"):
        rows = corpus.split(split)
        pairs = np.stack([rows.column(c).to_numpy() for c in ("text", "text_pair")], axis=1)
        labels = rows.column("label").to_numpy().astype(np.float64)
        predicted = predict(head, latents, pairs.astype(np.int64)).astype(np.float64)
        if np.ptp(predicted) == 0:
            raise InputError(
                f"the head predicts {predicted[0]:.6g} for all {len(predicted)} {split} pairs, so there is "
                f"nothing to correlate; train it with a lower rate or longer"
            )
        metrics[split] = correlate(predicted, labels)
        metrics[f"n_{split}"] = len(labels)
        for name, measure in CORRELATIONS.items():
            metrics[f"{split}_{name}"] = measure(predicted, labels)
        tables.append(predictions_table(split, list(pairs.T), labels, predicted))
        if split == "test":
            metrics |= overlap_of_pairs(config, tables[-1], corpus)
    metrics |= {
        "majority": None,
        "self_similarity": float(predict(head, latents, np.zeros((1, 2), np.int64))[0]),
        "choice": _choice(result, layers),
        "n_parameters": head.n_parameters,
    }
    table = identified(pa.concat_tables(tables), corpus.examples, corpus.digests, ())
    return Scores(metrics, table)


def _choice(result: PairFitResult, layers: str | None) -> Mapping[str, JsonValue]:
    """What was chosen on dev: the epoch, and of a grid every setting that is a number or a name, and the
    layers."""
    config = result.config
    chosen: dict[str, JsonValue] = {"head": config.head.kind, "loss": config.loss.kind}
    chosen["epoch"] = result.best.epoch
    if result.candidate is None:
        return chosen
    settings = flat(config.model_dump(mode="json", exclude={"seed"}))
    if layers is not None:
        chosen["layers"] = layers
    return {**{n: v for n, v in settings if isinstance(v, str | int | float)}, **chosen}
