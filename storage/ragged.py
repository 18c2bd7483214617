"""Ragged batches: documents of different lengths, packed end to end without padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class Ragged:
    """Packed rows of several documents.

    `data` is `[n_tokens, ...]`, `offsets` is `[n_docs + 1]` int64 with `offsets[0] == 0` and
    `offsets[-1] == n_tokens`; document i is `data[offsets[i]:offsets[i + 1]]`.

    Raises:
        ValueError: the offsets do not describe the data.
    """

    data: NDArray[Any]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or self.offsets.size == 0 or self.offsets[0] != 0:
            raise ValueError(f"offsets must be 1-D and start at 0, got {quoted(self.offsets)}")
        if self.offsets[-1] != len(self.data):
            raise ValueError(
                f"offsets end at {self.offsets[-1]} but data has {len(self.data)} rows"
            )
        if np.any(np.diff(self.offsets) < 0):
            raise ValueError("offsets decrease; every document needs a length of 0 or more")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Rows per document, `[n_docs]` int64."""
        return np.diff(self.offsets)

    @classmethod
    def from_arrays(cls, documents: Sequence[NDArray[Any]]) -> "Ragged":
        """Pack documents, at least one, which defines width and dtype."""
        if not documents:
            raise ValueError("cannot pack zero documents: the row width and dtype are unknown")
        return cls(np.concatenate(documents), offsets_of([len(d) for d in documents]))

    def take(self, indices: NDArray[np.int64]) -> "Ragged":
        """The documents at `indices`, in that order, in one gather (no loop over documents)."""
        # Not through `lengths`, which would take time proportional to the number of documents in every batch.
        starts = self.offsets[:-1][indices]
        lengths = self.offsets[1:][indices] - starts
        return Ragged(self.data[ranges(starts, lengths)], offsets_of(lengths))


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets `[n + 1]` from lengths `[n]`."""
    out = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenation of `arange(start, start + length)` over all pairs, without a Python loop."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
