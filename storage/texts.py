"""Many texts in memory: an Arrow column with the interface of a sequence of strings."""

from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex, cast, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_AT_A_TIME = 4096
"""Texts converted to Python strings at a time while iterating."""


class Texts(Sequence[str]):
    """Strings in one Arrow array, with an overhead of 8 bytes each, where a tuple of `str` has 57.

    A Python string is created on access; a slice shares the memory.
    """

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Args: column: strings.

        Raises:
            ValueError: a text is missing.
        """
        wide = column.cast(pa.large_string())
        self._array = wide.combine_chunks() if isinstance(wide, pa.ChunkedArray) else wide
        if self._array.null_count:
            raise ValueError(f"{self._array.null_count} of {len(self._array)} texts are missing")

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Texts":
        """The same texts; memory is shared if they are in Arrow already."""
        return texts if isinstance(texts, Texts) else cls(pa.array(texts, pa.large_string()))

    def map(self, function: Callable[[str], str]) -> "Texts":
        """Apply `function` to each text."""
        parts = [
            pa.array([function(t) for t in self[at : at + _AT_A_TIME]], pa.large_string())
            for at in range(0, len(self), _AT_A_TIME)
        ]
        return Texts(pa.chunked_array(parts, pa.large_string()))

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        return self._array if type is None else self._array.cast(type)

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Texts": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "str | Texts":
        selected = self._array[index]
        return Texts(selected) if isinstance(index, slice) else selected.as_py()

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self), _AT_A_TIME):
            yield from self._array.slice(at, _AT_A_TIME).to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return self._array.equals(other._array)
        if isinstance(other, list | tuple):
            return list(self) == list(cast(Sequence[object], other))
        return NotImplemented

    def __hash__(self) -> int:
        return hash((len(self), *self[:3]))

    def __repr__(self) -> str:
        return f"Texts({len(self):,})"


def numbered(texts: Sequence[str]) -> NDArray[np.int32]:
    """The index of each text `[n]` among the distinct texts, in order of first appearance."""
    # Dictionary codes are assigned in that order.
    return pa.array(Texts.of(texts), pa.large_string()).dictionary_encode().indices.to_numpy()


def each_once(
    texts: Sequence[Sequence[str]], digests: Sequence[Sequence[str]]
) -> tuple[Texts, Texts]:
    """Texts of several corpora and their digests, each once, in order of first appearance."""
    parts = [pa.array(Texts.of(some), pa.large_string()) for some in digests]
    every = pa.concat_arrays(parts)
    _, first = np.unique(numbered(Texts(every)), return_index=True)
    kept = pa.concat_arrays([pa.array(Texts.of(some), pa.large_string()) for some in texts])
    rows = pa.array(first)
    return Texts(kept.take(rows)), Texts(every.take(rows))
