"""Stored vectors of a corpus, array by array, and the positions of layers on an axis."""

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import model_validator

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.finish import require_finite
from permafrost.stages.embed.layers import embed_ensemble
from permafrost.stages.extraction.capture import (
    ArrayName,
    At,
    CaptureItem,
    Index,
    LayersText,
    What,
    in_order,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader

_ROWS_AT_A_TIME = 4096


class StoredLayers(CaptureItem):
    """Arrays of the store, one per layer: what a probe reads, and what is captured for it."""

    what: What = "hidden"
    """The kind of tensor."""
    layers: LayersText = "all"
    """`all` (of hidden states from 0, the embedding output, to `final`, where there is a final norm),
    `half`, `final`, indices and ranges."""
    at: At = "mean"
    """One vector per text: `mean` (over the span), `last` (the last token of the input) or `readout`."""

    @model_validator(mode="after")
    def _vectors_not_weights(self) -> "StoredLayers":
        if self.what == "attention_rows":
            raise ValueError(
                "attention rows are weights over tokens, not vectors; use hidden or values"
            )
        return self

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Names in the store, ascending by layer.

        Raises:
            InputError: a layer that this backbone does not have.
        """
        return in_order(name.text for name in self.names(sizes))


class PooledLayers(StoredLayers):
    """Arrays of one vector per text."""

    @model_validator(mode="after")
    def _not_of_tokens(self) -> "PooledLayers":
        if self.at == "tokens":
            raise ValueError(
                "this probe reads one vector per text, not one per token; write at: mean, last or readout"
            )
        return self


def stored_vectors(
    config: StoredLayers, prompt_features: Sequence[Features], progress: Progress
) -> Iterator[tuple[Index, Vectors]]:
    """Every layer with its vectors `[n_texts, width]` float32; one layer is held at a time.

    The members of a prompt ensemble are averaged, as MetaEOL does.

    Raises:
        InputError: a layer that the backbone does not have, or a vector that is not finite.
    """
    arrays = config.arrays(prompt_features[0].sizes)
    n_texts = prompt_features[0].n_texts
    progress.start("probe", len(arrays) * n_texts, "texts")
    try:
        for array in arrays:
            vectors = embed_ensemble(
                (_whole(m.reader(array, "all")) for m in prompt_features), "average"
            )
            require_finite(vectors, prompt_features[0].name)
            yield ArrayName.parse(array).index, vectors
            progress.advance(n_texts)
    finally:
        progress.finish()


def place(layer: Index, sizes: BackboneSizes) -> float:
    """Position of a layer on an axis; `final` comes one after the last block."""
    return float(sizes.n_layers + 1 if layer == "final" else layer)


def _whole(reader: FeatureReader) -> Vectors:
    return np.concatenate([rows.data for _, rows in reader.in_order(_ROWS_AT_A_TIME)])
