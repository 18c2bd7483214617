"""Where the rows of an ordered list of texts come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.features.projections import read_projection
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.quoting import quoted
from permafrost.storage.readers import FeatureReader, open_reader

Tokens = Literal["span", "all"]
Projection = tuple[NDArray[np.float32], NDArray[np.float32] | None]
"""Weight `[d_heads, d_model]` and bias `[d_model]` of a block's output projection."""

BUDGET_BYTES = 1 << 28
"""An array is read whole up to this size, in windows of it beyond; one array at a time is open, or two."""


@runtime_checkable
class Features(Protocol):
    """The rows of an ordered list of texts under one recipe."""

    @property
    def sizes(self) -> BackboneSizes:
        """Sizes of the backbone that computed the features."""
        ...

    @property
    def n_texts(self) -> int:
        """The number of texts."""
        ...

    def reader(self, array: str, tokens: Tokens) -> FeatureReader:
        """A reader of one array, over the tokens of the span or over all of the input."""
        ...

    def projection(self, block: int) -> Projection:
        """The output projection of a block."""
        ...

    def name(self, text: int) -> str:
        """The name of a text in messages."""
        ...


@dataclass(frozen=True)
class StoredFeatures:
    """Features in a store."""

    store: FeatureStore
    sizes: BackboneSizes
    digests: Sequence[str]
    """Content digests of the texts; repeats are allowed, but each is read again."""
    budget_bytes: int = BUDGET_BYTES

    @property
    def n_texts(self) -> int:
        """The number of texts."""
        return len(self.digests)

    def reader(self, array: str, tokens: Tokens) -> FeatureReader:
        """A reader of one array.

        Raises:
            NotFoundError: a text or the array is not in the store.
        """
        return open_reader(
            self.store, array, self.digests, budget_bytes=self.budget_bytes, tokens=tokens
        )

    def projection(self, block: int) -> Projection:
        """The output projection of a block.

        Raises:
            NotFoundError: not in the store.
        """
        return read_projection(self.store, block)

    def name(self, text: int) -> str:
        """The position and the beginning of a text."""
        where = self.store.locate([self.digests[text]])
        segment = int(where.segment[0])
        row = int(where.text_row[0]) - segment * self.store.record.axes.segment_texts
        content = self.store.segment(segment).table.column("text").slice(row, 1).to_pylist()[0]
        return f"text {text} ({quoted(content)})"
