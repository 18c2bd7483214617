"""What a fit and a score read: stored features by array, and the examples that refer to them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.errors import InputError, NotFoundError
from storage.readers import FeatureReader


@dataclass(frozen=True)
class Labelled:
    """The examples of one split: which text `[n]` int64 and its class `[n]` int64."""

    split: str
    texts: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class FitData:
    """Features and examples of one classification corpus.

    `readers[array]` counts texts as the corpus does; `examples` has the columns split, text,
    text_pair and label; `label_names[c]` names class c; `digests[i]` identifies text i.
    """

    readers: Mapping[str, FeatureReader]
    examples: pa.Table
    label_names: tuple[str, ...]
    digests: tuple[str, ...]

    def reader(self, array: str) -> FeatureReader:
        """The features of one array.

        Raises:
            NotFoundError: this array was not opened.
            InputError: a text has no tokens.
        """
        if array not in self.readers:
            have = ", ".join(sorted(self.readers)) or "nothing"
            raise NotFoundError(f"there are no features {array}; the fit was given {have}")
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

    def split(self, name: str) -> Labelled:
        """The examples of a split.

        Raises:
            InputError: none, pairs instead of single texts, or a label that is not a class.
        """
        rows = self.examples.filter(pc.field("split") == name)
        if not len(rows):
            have = ", ".join(sorted(self.examples.column("split").unique().to_pylist())) or "none"
            raise InputError(
                f"the corpus has no {name} examples (its splits: {have}); a head is trained on train, "
                "chosen on dev and scored on test"
            )
        pairs = len(rows) - rows.column("text_pair").null_count
        if pairs:
            raise InputError(
                f"{pairs} of {len(rows)} {name} examples are pairs of texts; this head classifies "
                "single texts"
            )
        n_classes = len(self.label_names)
        missing = rows.column("label").null_count
        if missing or n_classes < 2:
            raise InputError(
                f"{missing} of {len(rows)} {name} examples have no label and the corpus names "
                f"{n_classes} classes; a classification corpus with at least two is needed"
            )
        values = rows.column("label").to_numpy()
        labels = values.astype(np.int64)
        wrong = np.flatnonzero((labels != values) | (labels < 0) | (labels >= n_classes))
        if len(wrong):
            raise InputError(
                f"{len(wrong)} {name} examples have a label that is no class index (the first is "
                f"{values[wrong[0]]}); the {n_classes} classes are 0 to {n_classes - 1}"
            )
        return Labelled(name, rows.column("text").to_numpy().astype(np.int64), labels)
