"""Relevance by cosine: the vectors of a frozen model for the text and for the node's label."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.graphs.language_models import (
    LanguageModel,
    load_reader,
    mean_states,
    model_facts,
)
from permafrost.stages.graphs.relevance import Relevance
from permafrost.storage.progress import Progress


class CosineRelevance(Relevance):
    """The cosine of two vectors, each the mean of a model's last states over all tokens.

    Far cheaper than `likelihood`: a text, and a label, is read once, whatever the number of pairs.
    """

    kind: Literal["cosine"] = "cosine"
    backbone: BackboneConfig
    """Encoder or decoder; texts beyond its `max_length` are cut."""

    def facts(self) -> dict[str, Any]:
        """The model by the digests of its files."""
        return {"kind": self.kind, "backbone": model_facts(self.backbone)}

    def scores(
        self,
        labels: Sequence[str],
        texts: Sequence[str],
        nodes: Sequence[NDArray[np.int64]],
        progress: Progress,
        device: str,
    ) -> list[NDArray[np.float32]]:
        """Between -1 and 1."""
        wanted = np.unique(np.concatenate(nodes)) if nodes else np.empty(0, np.int64)
        if not len(wanted):
            return [np.empty(0, np.float32) for _ in nodes]
        own = [labels[node] for node in wanted.tolist()]
        vectors = _vectors(load_reader(self.backbone, device), [*texts, *own], progress)
        rows = [len(texts) + np.searchsorted(wanted, some) for some in nodes]
        return [vectors[some] @ vectors[i] for i, some in enumerate(rows)]


def _vectors(model: LanguageModel, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
    """A row of unit length for every text."""
    encoded = model.tokenizer(list(texts), truncation=True, max_length=model.max_length)
    # A label of characters that the tokenizer drops may have no token at all; any one stands for it.
    sequences = [ids or [0] for ids in encoded["input_ids"]]
    vectors: NDArray[np.float32] | None = None
    progress.start("score nodes", len(sequences), "texts")
    try:
        for rows, some in mean_states(model, sequences):
            if vectors is None:
                vectors = np.empty((len(sequences), some.shape[1]), np.float32)
            vectors[rows] = some.numpy()
            progress.advance(len(rows))
    finally:
        progress.finish()
    assert vectors is not None, "no texts"
    return vectors
