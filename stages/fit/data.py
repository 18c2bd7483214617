"""The input of a fit and of a score: stored features by array, and the examples that refer to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.stages.corpus.columns import TaskKind, advice_on_splits
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged, offsets_of
from permafrost.storage.readers import FeatureReader


@dataclass(frozen=True)
class Examples:
    """The examples of one split: the texts `[n]` int64 of one or two sides, and labels `[n]`."""

    split: str
    sides: tuple[NDArray[np.int64], ...]
    labels: NDArray[Any]
    """Class indices int64, graded scores float64, or, for pairs without labels, int64 ones: the rank that
    the second text should have among all second texts by similarity to the first."""
    negatives: Ragged | None = None
    """Texts `[n_negatives]` int64, any number per example; None if the corpus has none."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> NDArray[np.int64]:
        """The (first) text of each example."""
        return self.sides[0]

    def with_negatives(self, at_most: int | None) -> "Examples":
        """The same with the first `at_most` (None: all) hard negatives of each example."""
        if at_most is None or self.negatives is None:
            return self
        begins, lengths = self.negatives.offsets[:-1], self.negatives.lengths
        place = np.arange(len(self.negatives.data)) - np.repeat(begins, lengths)
        kept = self.negatives.data[place < at_most]
        return replace(self, negatives=Ragged(kept, offsets_of(np.minimum(lengths, at_most))))


@dataclass(frozen=True)
class FitData:
    """Features and examples of one corpus.

    `readers[array]` numbers texts as the corpus does; `examples` has the columns split, text, text_pair,
    label and possibly negatives; `label_names[c]` names class c and is empty if labels are not classes;
    `digests[i]` identifies text i; `task` is the kind of the corpus.
    """

    readers: Mapping[str, FeatureReader]
    examples: pa.Table
    label_names: tuple[str, ...]
    digests: Sequence[str]
    task: TaskKind = "classification"

    def reader(self, array: str) -> FeatureReader:
        """The features of one array.

        Raises:
            NotFoundError: there is no reader for this array.
            InputError: a text has no tokens.
        """
        if array not in self.readers:
            have = ", ".join(sorted(self.readers)) or "nothing"
            raise NotFoundError(f"there are no features {array}; the fit has {have}")
        reader = self.readers[array]
        if reader.n_texts != len(self.digests):
            raise InputError(
                f"{array} has {reader.n_texts} texts and the corpus {len(self.digests)}; open the "
                "reader for the texts of this corpus"
            )
        empty = np.flatnonzero(reader.lengths == 0)
        if len(empty):
            raise InputError(
                f"{len(empty)} texts have no tokens in {array} (the first is text {empty[0]}, digest "
                f"{self.digests[empty[0]]}), so nothing can be pooled; remove them from the corpus"
            )
        return reader

    def split(self, name: str) -> Examples:
        """The examples of a split.

        Raises:
            InputError: there are none, they are single texts instead of pairs or the reverse, or a label is
                not a class or not a score.
        """
        rows = self.examples.filter(pc.field("split") == name)
        if not rows.num_rows:
            have = ", ".join(sorted(self.examples.column("split").unique().to_pylist())) or "none"
            raise InputError(
                f"the corpus has no {name} examples (its splits: {have}); a head is trained on train, "
                f"chosen on dev and scored on test. {advice_on_splits([name])}"
            )
        return Examples(name, self._sides(name, rows), self._labels(name, rows), _negatives(rows))

    def _sides(self, split: str, rows: pa.Table) -> tuple[NDArray[np.int64], ...]:
        n_rows = rows.num_rows
        pairs = n_rows - rows.column("text_pair").null_count
        if self.task == "classification":
            if pairs:
                raise InputError(
                    f"{pairs} of {n_rows} {split} examples are pairs of texts; a task of kind "
                    "'classification' has single texts, so use 'pair_classification'"
                )
            return (_indices(rows, "text"),)
        if pairs < n_rows:
            raise InputError(
                f"{n_rows - pairs} of {n_rows} {split} examples have no second text, but a head is "
                f"trained on pairs for a task of kind {quoted(self.task)}; give every example a text_pair"
            )
        return _indices(rows, "text"), _indices(rows, "text_pair")

    def _labels(self, split: str, rows: pa.Table) -> NDArray[Any]:
        if self.task == "unlabelled":
            return np.ones(rows.num_rows, np.int64)
        column = rows.column("label")
        if self.task == "similarity":
            return _scores(split, column)
        return _classes(split, column, len(self.label_names))


def _indices(rows: pa.Table, column: str) -> NDArray[np.int64]:
    return rows.column(column).to_numpy().astype(np.int64)


def _negatives(rows: pa.Table) -> Ragged | None:
    if "negatives" not in rows.column_names:
        return None
    column = rows.column("negatives")
    counts = pc.list_value_length(column).to_numpy().astype(np.int64)
    return Ragged(pc.list_flatten(column).to_numpy(), offsets_of(counts))


def _scores(split: str, column: pa.ChunkedArray) -> NDArray[np.float64]:
    scores = column.cast(pa.float64()).to_numpy()
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        raise InputError(
            f"{len(wrong)} of {len(scores)} {split} examples have no finite score (the first is example "
            f"{wrong[0]}); a similarity needs one for every pair"
        )
    return scores


def _classes(split: str, column: pa.ChunkedArray, n_classes: int) -> NDArray[np.int64]:
    missing = column.null_count
    if missing or n_classes < 2:
        raise InputError(
            f"{missing} of {column.length()} {split} examples have no label and the corpus names "
            f"{n_classes} classes; a classification corpus with at least two is needed"
        )
    values = column.to_numpy()
    labels = values.astype(np.int64)
    wrong = np.flatnonzero((labels != values) | (labels < 0) | (labels >= n_classes))
    if len(wrong):
        raise InputError(
            f"{len(wrong)} {split} examples have a label that is not a class index (the first is "
            f"{values[wrong[0]]}); the {n_classes} classes are 0 to {n_classes - 1}"
        )
    return labels
