"""What every aggregation is: the stored rows of one layer, and the vector that they become for each text."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import Features, Tokens
from permafrost.stages.extraction.capture import Index, What
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.kinds import Category, Kind
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import FeatureReader

MOST_TEXTS = 256
BATCH_BYTES = 64 << 20
"""Rows of a batch in float32, at most, unless one text is longer."""

Of = Literal["hidden", "values"]
"""What a pooling pools."""


class Aggregation(Kind, ABC):
    """Turns the rows of a layer into one vector per text, without parameters."""

    default_layers: ClassVar[Literal["last", "all"]] = "all"
    """What `layers: default` means."""

    def what(self, of: Of) -> What:
        """What `layers` counts: hidden states, or values.

        Args:
            of: the setting of the experiment, which some aggregations ignore.

        Raises:
            ValueError: the aggregation is not defined for it.
        """
        return of

    def stored(self, of: Of) -> tuple[What, ...]:
        """The kinds of array that it reads for each layer."""
        return (self.what(of),)

    def width(self, of: Of, sizes: BackboneSizes) -> int:
        """The width of the vectors of one layer."""
        return sizes.d_value if self.what(of) == "values" else sizes.d_model

    @abstractmethod
    def vectors(self, of: Of, layer: Index, features: Features, progress: Progress) -> Vectors:
        """The vectors of one layer, in the order of `features`.

        Raises:
            InputError: a text whose span is empty.
        """


AGGREGATIONS = Category("aggregation", Aggregation, "permafrost.stages.embed.aggregations")
Method = Annotated[Aggregation, AGGREGATIONS.field_or_name()]
"""Any aggregation, by its name."""


class PooledRows(Aggregation):
    """A pooling of a text's rows."""

    default_layers = "last"
    tokens: ClassVar[Tokens] = "span"
    """Over the span, or all of the input."""

    @abstractmethod
    def pool(self, rows: Ragged) -> Vectors:
        """One vector per text, as wide as its rows `[n_tokens, width]` float32, which are at least one."""

    def vectors(self, of: Of, layer: Index, features: Features, progress: Progress) -> Vectors:
        """The vectors of one layer, read batch by batch.

        Raises:
            InputError: a text whose span is empty; or `pool` gave another shape, or finite rows a vector that
                is not, as a plug-in's may.
        """
        reader = features.reader(f"{self.what(of)}/{layer}", self.tokens)
        if empty := np.flatnonzero(reader.lengths == 0).tolist():
            raise InputError(
                f"{features.name(empty[0])} has no token in its span ({len(empty)} such of "
                f"{reader.n_texts} texts), so nothing can be pooled; use another recipe"
            )
        out = np.empty((reader.n_texts, reader.width), dtype=np.float32)
        for texts, rows in reader.in_order(batch_size([reader])):
            pooled = as_vectors(
                self.pool(rows), (len(texts), reader.width), f"{type(self).__name__}.pool"
            )
            if not np.isfinite(pooled).all() and np.isfinite(rows.data).all():
                first = int(texts[~np.isfinite(pooled).all(axis=1)][0])
                raise InputError(
                    f"{type(self).__name__}.pool gave numbers that are not finite, first for "
                    f"{features.name(first)}, whose rows of {reader.array} are finite; mend how it pools"
                )
            out[texts] = pooled
            progress.advance(len(texts))
        return out


def as_vectors(found: object, shape: tuple[int, int], who: str) -> Vectors:
    """What a method gave, float32 `[n_texts, width]`; numpy would give one vector to every text.

    Args:
        found: by its type an array, which a plug-in's need not be.
        shape: the number of texts, and the width.
        who: gave it, for messages.

    Raises:
        InputError: it is no such array.
    """
    try:
        vectors = np.asarray(found, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{who} gave {type(found).__name__}, of which numpy makes no vectors ({error}); return one "
            f"vector per text, an array [{shape[0]}, {shape[1]}] of float32"
        ) from error
    if vectors.shape != shape:
        raise InputError(
            f"{who} gave vectors of shape {list(vectors.shape)} for {shape[0]} texts of width {shape[1]}; "
            f"return one vector per text, [{shape[0]}, {shape[1]}]"
        )
    return vectors


def batch_size(readers: list[FeatureReader]) -> int:
    """How many texts of a batch are read at once from all readers."""
    row_bytes = 4 * sum(r.width for r in readers)
    longest = max(int(r.lengths.max()) for r in readers)
    return max(min(MOST_TEXTS, BATCH_BYTES // (row_bytes * longest)), 1)
