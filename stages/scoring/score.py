"""Score a trained head on dev and test, and record its token weights.

Dev and test are scored with their true labels, even for a head that was trained on shuffled ones.
"""

import copy

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.predictions import Predictions
from permafrost.stages.fit.run import predict
from permafrost.stages.fit.sources import source_of, to_tensors
from permafrost.stages.fit.trained import LoadedHead
from permafrost.stages.metrics.records import WEIGHTED_TEXTS
from permafrost.stages.metrics.vector_map import spread_evenly, vector_map
from permafrost.stages.scoring.answers import answer_metrics, answers_table
from permafrost.stages.scoring.scored import ScoreConfig, ScoreResult, scored_examples
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def score(
    config: ScoreConfig,
    head: LoadedHead,
    data: FitData,
    device: str = "cpu",
    chosen: FitData | None = None,
) -> ScoreResult:
    """Score `head` on the dev and test examples of a corpus.

    Args:
        config: how much to keep.
        head: a trained head.
        data: features and examples of the kind, and with the classes, that the head was trained on.
        device: where to compute, for example "cuda".
        chosen: features of other texts, which are not scored, but whose token weights are kept too.

    Raises:
        InputError: there are no dev or test examples; the kind of corpus, the classes or the width of
            features differ; all scores are equal, or all pairs have the same second text.
    """
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
    chosen_weights = None
    if chosen is not None:
        shown = spread_evenly(len(chosen.digests), config.n_weight_texts)
        chosen_weights = _weights(moved, chosen, shown, config.batch_size, torch_device)
    return ScoreResult(metrics, answers_table(data, answered), weights, vectors, chosen_weights)


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
    picked = spread_evenly(len(test), config.n_map_texts)
    if data.task != "classification" or not len(picked):
        return None
    texts = test.texts[picked]
    batches = data.reader(head.layer).subset(texts).in_order(config.batch_size)
    rows = [head.embed(*to_tensors(features, device)).cpu().numpy() for _, features in batches]
    return vector_map(texts, test.labels[picked], np.concatenate(rows))
