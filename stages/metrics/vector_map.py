"""Vectors of test texts in two dimensions, for a picture: the first two principal components.

Axes: n texts, d width of a vector.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from permafrost.storage.errors import CorruptDataError

VECTOR_MAP = "map.parquet"
MAP_TEXTS = 300
"""Texts on a map, at most, unless a config says otherwise."""
_SHARES = b"shares"
_CLASSES = b"classes"
_TITLE = "title"
_SCHEMA = pa.schema({"text": pa.int64(), "class": pa.int64(), "x": pa.float32(), "y": pa.float32()})


def principal_components(
    vectors: Float[np.ndarray, "n d"],
) -> tuple[Float64[np.ndarray, "n 2"], tuple[float, float]]:
    """Coordinates on the first two principal components, and the shares of the variance on them.

    Exact, in float64, from the inner products of the centred vectors; the coordinate of largest size is
    positive on both axes. All zeros where no vector differs from another.
    Source: Pearson (1901), as scikit-learn's PCA but for the signs.
    """
    # From the first vector: the mean of equal numbers need not be one of them.
    centred = vectors.astype(np.float64) - vectors[:1]
    centred -= centred.mean(axis=0)
    squares, directions = np.linalg.eigh(centred @ centred.T)
    squares = np.maximum(squares[::-1], 0.0)
    total = float(np.square(centred).sum())
    shown = np.zeros((len(vectors), 2))
    n = min(2, len(vectors))
    shown[:, :n] = directions[:, ::-1][:, :n] * np.sqrt(squares[:n])
    largest = shown[np.abs(shown).argmax(axis=0), np.arange(2)]
    shown *= np.where(largest < 0, -1.0, 1.0)
    shares = [float(squares[i]) / total if i < n and total > 0 else 0.0 for i in range(2)]
    return shown, (shares[0], shares[1])


def spread_evenly(n: int, n_kept: int) -> NDArray[np.int64]:
    """`n_kept` places of `n` at most, evenly over all of them, first and last included."""
    return np.linspace(0, n - 1, min(n_kept, n)).round().astype(np.int64)


@dataclass(frozen=True)
class MapNames:
    """What a map calls its classes and texts, where no corpus of an experiment does."""

    classes: tuple[str, ...]
    """By class index."""
    texts: tuple[str, ...]
    """`[n]`; their beginnings."""


def vector_map(
    texts: NDArray[np.int64],
    classes: NDArray[np.int64],
    vectors: Float[np.ndarray, "n d"],
    names: MapNames | None = None,
) -> pa.Table | None:
    """The map of these texts: text, class, x, y, and in its metadata the shares of the variance.

    None where a vector is not finite, which has no place on a map.

    Args:
        texts: `[n]`, numbers in the corpus, or with names in other data.
        classes: `[n]`, class indices.
        vectors: one per text.
        names: a column `title` and class names in the metadata, if given.
    """
    if not np.isfinite(vectors).all():
        return None
    shown, shares = principal_components(vectors)
    columns = [texts, classes, *shown.T.astype(np.float32)]
    table = pa.Table.from_arrays([pa.array(c) for c in columns], schema=_SCHEMA)
    facts = {_SHARES: json.dumps(shares)}
    if names is not None:
        table = table.append_column(_TITLE, pa.array(names.texts, pa.string()))
        facts[_CLASSES] = json.dumps(names.classes)
    return table.replace_schema_metadata(facts)


@dataclass(frozen=True)
class VectorMap:
    """A map as it was written."""

    texts: NDArray[np.int64]
    """`[n]`"""
    classes: NDArray[np.int64]
    """`[n]`"""
    points: NDArray[np.float64]
    """`[n, 2]`"""
    shares: tuple[float, float]
    """Of the variance, on either axis."""
    names: MapNames | None = None
    """None where the classes and texts are those of a corpus."""


def read_vector_map(folder: Path) -> VectorMap | None:
    """The map in a folder of results; None where none was made.

    Raises:
        CorruptDataError: the file cannot be read, or lacks a column.
    """
    path = folder / VECTOR_MAP
    if not path.exists():
        return None
    try:
        table = pq.read_table(path)
        facts = table.schema.metadata or {}
        first, second = json.loads(facts[_SHARES])
        columns = [table.column(name).to_numpy() for name in _SCHEMA.names]
        names = None
        if _TITLE in table.column_names:
            titles = table.column(_TITLE).to_pylist()
            names = MapNames(tuple(json.loads(facts[_CLASSES])), tuple(titles))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptDataError(
            f"{path} holds no map of vectors ({error}); delete the artifact and score it again"
        ) from error
    points = np.stack(columns[2:], axis=1).astype(np.float64)
    return VectorMap(columns[0], columns[1], points, (float(first), float(second)), names)
