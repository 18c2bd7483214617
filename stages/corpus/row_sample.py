"""A seeded sample of the rows of splits."""

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_SEED, MAX_TEXTS
from permafrost.stages.corpus.rows import Negatives, SplitRows
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class RowSample(BaseModel):
    """How many rows of which splits are kept.

    Rows are chosen by a seeded hash of their texts, so that a dataset sorted by class gives all of its
    classes and the order of the rows does not matter; those that are kept stay in order. Slices of
    `datasets`, such as `train[:2000]`, take the first rows instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_rows: dict[str, int] = Field(min_length=1)
    """Rows to keep, by split; other splits stay whole. Dev and test are carved from what is kept of train."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""

    def of(self, rows: SplitRows) -> SplitRows:
        """The rows of a split that are kept.

        Raises:
            InputError: the split has fewer.
        """
        n_kept, n_there = self.n_rows.get(rows.split), rows.text.length()
        if n_kept is None:
            return rows
        if not 1 <= n_kept <= min(n_there, MAX_TEXTS):
            raise InputError(
                f"sample asks for {n_kept} rows of the split {quoted(rows.split)}, and {rows.where} has "
                f"{n_there}; write 1 to {n_there}, or leave the split out of the sample to read all"
            )
        sides = [c.to_pylist() for c in (rows.text, rows.text_pair) if c is not None]
        hashes = [
            hashlib.sha256("\0".join((str(self.seed), *row)).encode()).digest()
            for row in zip(*sides, strict=True)
        ]
        kept = np.sort(np.array(sorted(range(n_there), key=lambda i: (hashes[i], i))[:n_kept]))
        return _taken(rows, kept)


def _taken(rows: SplitRows, kept: NDArray[np.int64]) -> SplitRows:
    at = pa.array(kept)
    negatives = rows.negatives
    if negatives is not None:
        is_kept = np.isin(negatives.rows, kept)
        negatives = Negatives(
            negatives.column,
            negatives.texts.filter(pa.array(is_kept)),
            np.searchsorted(kept, negatives.rows[is_kept]),
        )
    return SplitRows(
        split=rows.split,
        where=rows.where,
        text=rows.text.take(at),
        text_pair=None if rows.text_pair is None else rows.text_pair.take(at),
        label=None if rows.label is None else rows.label.take(at),
        class_names=rows.class_names,
        negatives=negatives,
        label_name=rows.label_name,
        numbers=kept,
    )
