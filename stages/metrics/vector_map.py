"""Vectors of test texts in two dimensions, for plots: the first two principal components.

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
"""Default maximum number of texts on a map."""
_SHARES = b"shares"
_CLASSES = b"classes"
_TITLE = "title"
_SCHEMA = pa.schema({"text": pa.int64(), "class": pa.int64(), "x": pa.float32(), "y": pa.float32()})


def principal_components(
    vectors: Float[np.ndarray, "n d"],
) -> tuple[Float64[np.ndarray, "n 2"], tuple[float, float]]:
    """Coordinates on the first two principal components, and their shares of the variance.

    Exact, in float64, from the inner products of the centred vectors; on both axes the coordinate of largest
    magnitude is positive. All zeros if all vectors are equal.
    Source: Pearson (1901); as scikit-learn's PCA except for the signs.
    """
    # Subtract the first vector first, as the mean of equal numbers may differ from them by rounding.
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
    """At most `n_kept` of `n` indices, evenly spaced, first and last included."""
    return np.linspace(0, n - 1, min(n_kept, n)).round().astype(np.int64)


@dataclass(frozen=True)
class MapNames:
    """Names of a map's classes and texts, if they are not in a corpus of the experiment."""

    classes: tuple[str, ...]
    """Names by class index."""
    texts: tuple[str, ...]
    """`[n]`; the beginnings of the texts."""


def vector_map(
    texts: NDArray[np.int64],
    classes: NDArray[np.int64],
    vectors: Float[np.ndarray, "n d"],
    names: MapNames | None = None,
) -> pa.Table | None:
    """The map of these texts: columns text, class, x, y, with the shares of the variance in its metadata.

    None if a vector is not finite, as it has no position on a map.

    Args:
        texts: `[n]`, indices in the corpus, or with `names` in other data.
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
    """A map as read back."""

    texts: NDArray[np.int64]
    """`[n]`"""
    classes: NDArray[np.int64]
    """`[n]`"""
    points: NDArray[np.float64]
    """`[n, 2]`"""
    shares: tuple[float, float]
    """Shares of the variance on both axes."""
    names: MapNames | None = None
    """None if classes and texts are those of a corpus."""


def read_vector_map(folder: Path) -> VectorMap | None:
    """The map in a folder of results; None if there is none.

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
