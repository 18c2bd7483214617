"""A split as a fit reads it: features of its texts, and batches of its examples.

Axes: n examples of s sides.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from permafrost.stages.fit.data import Examples
from permafrost.stages.fit.trainer import shuffled_batches
from permafrost.stages.heads.head import HeadConfig
from permafrost.stages.heads.pooling import build_pooling, pool
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import Batch, FeatureReader, InMemoryReader


@dataclass(frozen=True)
class Singles:
    """Examples of one text each."""

    reader: FeatureReader
    """Text i belongs to example i."""
    labels: np.ndarray

    @property
    def sides(self) -> Int64[np.ndarray, "1 n"]:
        """Texts of each example, as the reader numbers them."""
        return np.arange(len(self.labels))[None]

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Every example once: batches of indices `[b]` and the rows of their texts."""
        return self.reader.shuffled(batch_size, seed, epoch)


@dataclass(frozen=True)
class Pairs:
    """Examples of two texts each."""

    reader: FeatureReader
    """The distinct texts of both sides, and the negatives."""
    sides: Int64[np.ndarray, "2 n"]
    """Texts of each example, as the reader numbers them."""
    labels: np.ndarray
    negatives: Ragged | None = None
    """Hard negatives of each example, as the reader numbers them."""

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """Every example once: batches of indices `[b]` and the rows of b first texts, then of b second ones,
        then of the negatives of all b.

        The order does not depend on the kind of reader. A reader of windows loads the texts of as many
        batches at a time as its budget allows, but at least one; with negatives, exactly one.
        """
        batches = shuffled_batches(len(self.labels), batch_size, seed, epoch)
        if self.negatives is not None:
            return (self._with_negatives(batch, self.negatives.take(batch)) for batch in batches)
        texts = np.concatenate([self.sides[:, batch].ravel() for batch in batches])
        rows = self.reader.subset(texts).in_order(2 * batch_size)
        return ((batch, r) for batch, (_, r) in zip(batches, rows, strict=True))

    def _with_negatives(self, batch: Int64[np.ndarray, " b"], negatives: Ragged) -> Batch:
        texts = np.concatenate([self.sides[:, batch].ravel(), negatives.data])
        _, rows = next(self.reader.subset(texts).in_order(len(texts)))
        return batch, rows


Source = Singles | Pairs


def source_of(examples: Examples, reader: FeatureReader) -> Source:
    """Examples with the features of their texts; `reader` numbers texts as the corpus does."""
    if len(examples.sides) == 1:
        return Singles(reader.subset(examples.texts), examples.labels)
    texts, sides = np.unique(np.stack(examples.sides), return_inverse=True)
    return Pairs(reader.subset(texts), sides.reshape(2, -1), examples.labels)


def source_with_negatives(examples: Examples, reader: FeatureReader) -> Pairs:
    """As `source_of`, for pairs with hard negatives."""
    ragged = examples.negatives
    assert ragged is not None, "`require_negatives` checks this"
    texts, numbers = np.unique(np.concatenate([*examples.sides, ragged.data]), return_inverse=True)
    sides, negatives = np.split(numbers, [2 * len(examples)])
    return Pairs(
        reader.subset(texts),
        sides.reshape(2, -1),
        examples.labels,
        Ragged(negatives, ragged.offsets),
    )


def pooled(
    head: HeadConfig, reader: FeatureReader, batch_size: int, device: torch.device
) -> InMemoryReader:
    """The same texts, each replaced by its pooled vector, for a head without parameters."""
    pooling = build_pooling(head, reader.width, torch.Generator()).to(device)
    vectors = per_text(reader, batch_size, device, partial(pool, pooling)).numpy()
    offsets = np.arange(len(vectors) + 1, dtype=np.int64)
    return InMemoryReader(reader.array, Ragged(vectors, offsets))


def with_reader(source: Source, reader: FeatureReader) -> Source:
    """The same examples with other features of the same texts."""
    return replace(source, reader=reader)


def to_tensors(
    features: Ragged, device: torch.device
) -> tuple[Float[Tensor, "t d"], Int[Tensor, " n_plus_1"]]:
    """Packed tokens and offsets on a device; not copied on the CPU if they are writable float32."""
    data = np.require(features.data, dtype=np.float32, requirements=["C", "W"])
    return torch.from_numpy(data).to(device), torch.from_numpy(features.offsets).to(device)


@torch.no_grad()
def per_text(
    reader: FeatureReader,
    batch_size: int,
    device: torch.device,
    compute: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "n d"]:
    """`compute(tokens, offsets)` for every text of a reader, in its order, on the CPU."""
    parts = [compute(*to_tensors(rows, device)).cpu() for _, rows in reader.in_order(batch_size)]
    return torch.cat(parts)
