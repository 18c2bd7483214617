"""Features that a test makes up, without a store."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from permafrost.stages.embed.features import Projection, Tokens
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import FeatureReader, InMemoryReader


@dataclass(frozen=True)
class MemoryFeatures:
    """Features in memory, every token of the input."""

    sizes: BackboneSizes
    arrays: Mapping[str, Ragged]
    """Name to rows `[n_tokens, width]` float32, all over the same texts."""
    span: Ragged | None = None
    """bool `[n_tokens]`: the tokens of the span; None for all."""
    projections: Mapping[int, Projection] | None = None

    @property
    def n_texts(self) -> int:
        """Texts."""
        return len(next(iter(self.arrays.values())))

    def reader(self, array: str, tokens: Tokens) -> FeatureReader:
        """A reader of one array."""
        rows = self.arrays[array]
        if tokens == "span" and self.span is not None:
            kept = np.flatnonzero(self.span.data)
            rows = Ragged(rows.data[kept], np.searchsorted(kept, rows.offsets))
        return InMemoryReader(array, rows)

    def projection(self, block: int) -> Projection:
        """The output projection of a block."""
        return (self.projections or {})[block]

    def name(self, text: int) -> str:
        """Place of a text."""
        return f"text {text}"
