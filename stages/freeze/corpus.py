"""Pair heads on a corpus: training on its graded pairs, scoring on dev and test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float32
from pydantic import JsonValue

from permafrost.stages.corpus.columns import advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.extraction.capture import Index
from permafrost.stages.fit.checkpoint import Checkpoint
from permafrost.stages.freeze.config import AutoencoderConfig, PairFitConfig
from permafrost.stages.freeze.encoders import LayerAutoencoders
from permafrost.stages.freeze.fit_pairs import fit_pairs, predict
from permafrost.stages.freeze.layers_head import LAYERS_HEADS, AutoencodedHead
from permafrost.stages.freeze.pair_fit import GradedPairs, PairFitResult, load_pair_fit
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import Scores, predictions_table
from permafrost.stages.scoring.similarity import (
    CORRELATIONS,
    SimilarityConfig,
    overlap_of_pairs,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress


def graded_pairs(corpus: Corpus, split: str, label_range: tuple[float, float]) -> GradedPairs:
    """The pairs of a split, with labels rescaled from `label_range` to 0..1.

    Raises:
        InputError: not a similarity corpus.
        NotFoundError: there is no such split.
    """
    if corpus.task != "similarity":
        raise InputError(
            f"pair heads are trained on graded pairs, but the corpus is of kind {corpus.task}; use one of "
            f"kind similarity"
        )
    rows = corpus.split(split)
    low, high = label_range
    pairs = np.stack([rows.column(c).to_numpy() for c in ("text", "text_pair")], axis=1)
    labels = (rows.column("label").to_numpy() - low) / (high - low)
    return GradedPairs(pairs.astype(np.int64), labels.astype(np.float64))


def fit_corpus(
    config: PairFitConfig,
    latents: Float32[np.ndarray, "n l d"],
    corpus: Corpus,
    label_range: tuple[float, float],
    autoencoders: LayerAutoencoders | None,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
) -> PairFitResult:
    """Train a pair head on train, with its epoch chosen on dev; test is not read.

    Raises:
        InputError: no graded pairs; see also `fit_pairs`.
    """
    train, dev = (graded_pairs(corpus, split, label_range) for split in ("train", "dev"))
    return fit_pairs(config, latents, train, dev, autoencoders, progress, device, checkpoint)


def require_pairs(corpus: Corpus, label_range: tuple[float, float]) -> None:
    """Check everything about a pair head's corpus that can be checked without latents.

    Raises:
        InputError: no graded pairs, a split that is missing, labels outside their range or all equal.
    """
    low, high = label_range
    if not low < high:
        raise InputError(
            f"label_range goes from {low:g} to {high:g}; give the lowest label, then the highest"
        )
    if missing := [s for s in ("train", "dev", "test") if s not in corpus.splits]:
        raise InputError(
            f"a pair head is trained on train, chosen on dev and scored on test, but the corpus has "
            f"{', '.join(corpus.splits)}. {advice_on_splits(missing)}"
        )
    for split in ("train", "dev"):
        graded_pairs(corpus, split, label_range).require(split, len(corpus.texts))
    labels = corpus.split("test").column("label").to_numpy()
    if np.ptp(labels) == 0:
        raise InputError(
            f"all {len(labels)} test labels are {labels[0]:.6g}, so nothing correlates with them; use a "
            "split with different labels"
        )


def places_of(layers: Sequence[Index], pretrained: Sequence[Index]) -> tuple[int, ...]:
    """Where the layers that a head reads stand, from 0, among those that have a pretrained encoder.

    Raises:
        InputError: one has none.
    """
    if missing := [layer for layer in layers if layer not in pretrained]:
        raise InputError(
            f"the head reads layer {missing[0]}, for which there is no pretrained encoder (there are those "
            f"of {', '.join(map(str, pretrained))}); pretrain on all layers that heads read"
        )
    return tuple(pretrained.index(layer) for layer in layers)


def require_encoders(
    config: PairFitConfig,
    layers: Sequence[Index],
    pretrained: AutoencoderConfig,
    pretrained_layers: Sequence[Index],
) -> None:
    """Check that a head can start from pretrained encoders, those of the layers that it reads.

    Args:
        config: the head, to be trained.
        layers: whose latents the head reads.
        pretrained: how the encoders were pretrained.
        pretrained_layers: layers that have a pretrained encoder.

    Raises:
        InputError: the head has no autoencoder encoders; sizes, activations or the scale of latents differ;
            or a layer has no pretrained encoder.
    """
    head = config.head
    if (sizes := head.encoder_sizes) is None:
        others = [n for n, k in LAYERS_HEADS.kinds().items() if issubclass(k, AutoencodedHead)]
        raise InputError(
            f"the head {head.kind} cannot start from pretrained encoders; leave 'encoders' out, or use "
            f"{', '.join(others[:-1])} or {others[-1]}"
        )
    if config.scale != pretrained.scale:
        raise InputError(
            f"the head reads latents with scale {config.scale}, but the encoders were pretrained on those "
            f"with scale {pretrained.scale}; give both the same"
        )
    places, n = places_of(layers, pretrained_layers), len(pretrained_layers)
    theirs = pretrained.encoders.by_layer(n)
    if (sizes.activation, *sizes.by_layer(len(layers))) != (
        pretrained.encoders.activation,
        *(theirs[place] for place in places),
    ):
        raise InputError(
            f"the pretrained encoders ({n} layers, {pretrained.encoders}) do not fit the head's "
            f"({len(layers)} of these layers, {sizes}); pretrain with the head's sizes, or give the head "
            f"those of its layers: widths: {[theirs[place].width for place in places]}"
        )


def score_corpus(
    config: SimilarityConfig,
    folder: Path,
    latents: Float32[np.ndarray, "n l d"],
    corpus: Corpus,
) -> Scores:
    """Correlate the predictions of the head in `folder` with the labels of dev and test.

    `metrics` also has the score on the test pairs with neither text in train, their number, and the share of
    the others: STS-B's splits share texts. `self_similarity` is what the head gives a text and itself, the
    same for every text and not 1 (FREEZE!, appendix 10).

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
        "choice": _choice(result.config, result.best.epoch),
        "n_parameters": head.n_parameters,
    }
    table = identified(pa.concat_tables(tables), corpus.examples, corpus.digests, ())
    return Scores(metrics, table)


def _choice(config: PairFitConfig, epoch: int) -> Mapping[str, JsonValue]:
    return {"head": config.head.kind, "loss": config.loss.kind, "epoch": epoch}
