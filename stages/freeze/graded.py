"""Pairs of texts with grades between 0 and 1: of a corpus, and checked."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from permafrost.stages.corpus.columns import advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.storage.errors import InputError

_LEAST_SPAN = 0.25
"""Share of `label_range` that the grades of train span at least: 0 to 1 on a scale of 0 to 5 is another
scale."""


@dataclass(frozen=True)
class GradedPairs:
    """Pairs of texts, as row indices into the latents, with their similarities."""

    pairs: Int64[np.ndarray, "n 2"]
    labels: Float64[np.ndarray, " n"]
    """Between 0 and 1."""

    def __len__(self) -> int:
        return len(self.pairs)

    def shuffled(self, draw: np.random.Generator) -> "GradedPairs":
        """The same pairs with the labels of others: the control."""
        return GradedPairs(self.pairs, draw.permutation(self.labels))

    def require(self, split: str, n_texts: int) -> None:
        """Check the pairs of a split against the number of texts.

        Raises:
            InputError: there are fewer than two pairs, a label is outside 0..1, all labels are equal, or a
                text does not exist.
        """
        if len(self) < 2:
            raise InputError(
                f"{split} has {len(self)} pairs; give at least 2, since one pair has no variance and no "
                "correlation"
            )
        wrong = np.flatnonzero(~((self.labels >= 0) & (self.labels <= 1)))
        if len(wrong):
            raise InputError(
                f"{len(wrong)} of {len(self)} {split} labels lie outside 0 to 1 (the first is "
                f"{self.labels[wrong[0]]:.6g}); divide them by the highest grade of their scale"
            )
        if np.ptp(self.labels) == 0:
            raise InputError(
                f"all {len(self)} {split} labels are {self.labels[0]:.6g}, so there is nothing to learn or "
                "to correlate with; use a split with different labels"
            )
        if self.pairs.min() < 0 or self.pairs.max() >= n_texts:
            raise InputError(
                f"{split} pairs name texts {self.pairs.min()} to {self.pairs.max()}, but there are latents "
                f"for {n_texts}; read the latents of this corpus"
            )


def scaled_pairs(corpus: Corpus, split: str, label_range: tuple[float, float]) -> GradedPairs:
    """The pairs of a split, with labels rescaled from `label_range` to 0..1, or beyond: correlations, for
    which they serve, do not depend on it.

    Raises:
        NotFoundError: there is no such split.
    """
    rows = corpus.split(split)
    low, high = label_range
    pairs = np.stack([rows.column(c).to_numpy() for c in ("text", "text_pair")], axis=1)
    scaled = (rows.column("label").to_numpy() - low) / (high - low)
    return GradedPairs(pairs.astype(np.int64), scaled.astype(np.float64))


def graded_pairs(corpus: Corpus, split: str, label_range: tuple[float, float]) -> GradedPairs:
    """The pairs of a split, with labels rescaled from `label_range` to 0..1.

    Raises:
        InputError: not a similarity corpus, or a label is outside `label_range`.
        NotFoundError: there is no such split.
    """
    if corpus.task != "similarity":
        raise InputError(
            f"pair heads are trained on graded pairs, but the corpus is of kind {corpus.task}; use one of "
            f"kind similarity"
        )
    low, high = label_range
    labels = corpus.split(split).column("label").to_numpy()
    outside = np.flatnonzero(~((labels >= low) & (labels <= high)))
    if len(outside):
        raise InputError(
            f"{len(outside)} of {len(labels)} {split} labels lie outside label_range, which is {low:g} to "
            f"{high:g} (the first is {labels[outside[0]]:.6g}); give the method the lowest and the highest "
            "grade of their scale, as in label_range: [0, 10]"
        )
    return scaled_pairs(corpus, split, label_range)


def require_pairs(corpus: Corpus, label_range: tuple[float, float]) -> None:
    """Check everything about a pair head's corpus that can be checked without latents.

    Raises:
        InputError: no graded pairs, a split that is missing, labels outside their range, in a small part of
            it or all equal.
    """
    low, high = label_range
    if not low < high:
        raise InputError(
            f"label_range goes from {low:g} to {high:g}; give the lowest label, then the highest"
        )
    if missing := [s for s in ("train", "dev", "test") if s not in corpus.splits]:
        raise InputError(
            f"a pair head is trained on train, chosen on dev and scored on test, but the corpus has "
            f"{', '.join(corpus.splits)}. {advice_on_splits(missing)}"
        )
    for split in ("train", "dev"):
        graded_pairs(corpus, split, label_range).require(split, len(corpus.texts))
    given = corpus.split("train").column("label").to_numpy()
    if np.ptp(given) < _LEAST_SPAN * (high - low):
        raise InputError(
            f"the train labels go from {given.min():g} to {given.max():g}, but label_range from {low:g} to "
            f"{high:g}, so that a head would predict much the same of all pairs; give the method the lowest "
            f"and the highest grade of their scale, as in label_range: "
            f"[{given.min():g}, {given.max():g}]"
        )
    labels = corpus.split("test").column("label").to_numpy()
    if np.ptp(labels) == 0:
        raise InputError(
            f"all {len(labels)} test labels are {labels[0]:.6g}, so nothing correlates with them; use a "
            "split with different labels"
        )
