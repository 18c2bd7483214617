"""Longer graded pairs: the texts of several pairs with similar scores, joined side by side."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_GENERATED, MAX_SEED
from permafrost.stages.corpus.columns import Similarity
from permafrost.stages.corpus.made_pairs import MadePairs
from permafrost.stages.corpus.rows import SplitRows
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class JoinedCorpus(MadePairs):
    """Graded pairs, each joined with others of its split that have a similar score (HTP, figure 1).

    The first texts of the pairs are joined by spaces to one text, the second ones to another, in the same
    order; the grade is the mean of theirs. There are as many pairs as before, so that they share texts. The
    paper says no more than that sentences with similar scores were concatenated: bins and numbers are ours.

    ```yaml
    kind: joined
    source: {kind: files, files: {test: data/sts.csv}, task: {kind: similarity, label: score}}
    n_pairs: 4
    ```
    """

    kind: Literal["joined"] = "joined"
    n_pairs: int = Field(ge=1, le=MAX_GENERATED)
    """Pairs in each joined one, its own included; 1 leaves them as they are. A larger number adds to those
    of a smaller one."""
    n_bins: int = Field(default=5, ge=1, le=MAX_GENERATED)
    """Scores are similar within one of so many parts of equal width between a split's lowest and highest."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Seeds the choice of the others."""

    @model_validator(mode="after")
    def _source_is_graded_pairs(self) -> "JoinedCorpus":
        if not isinstance(self.source.task, Similarity):
            raise ValueError(
                f"the source has a task of kind {quoted(self.source.task.kind)}, but pairs are joined by "
                "their scores; use 'similarity'"
            )
        return self

    def rows(self) -> list[SplitRows]:
        """Read the pairs of every split and join them.

        Raises:
            InputError: see the source; or too few pairs have a similar score.
        """
        splits = self.source.read_rows()
        grades, _ = self.columns().label_values(splits)
        return [
            self._joined(split, np.asarray(values, dtype=np.float64))
            for split, values in zip(splits, grades, strict=True)
        ]

    def _joined(self, split: SplitRows, grades: NDArray[np.float64]) -> SplitRows:
        assert split.text_pair is not None, "a task of pairs without a second text"
        sides = split.text.to_pylist(), split.text_pair.to_pylist()
        bins = _bins(grades, self.n_bins)
        members = defaultdict[int, list[int]](list)
        for row, one in enumerate(bins):
            members[one].append(row)
        if (fewest := min(map(len, members.values()))) < self.n_pairs:
            raise InputError(
                f"{split.where}: only {fewest} of its {len(bins)} pairs have scores in the same of "
                f"{self.n_bins} parts of its scale, too few to join {self.n_pairs}; ask for fewer"
            )
        chosen = [
            [row, *self._others(row, members[one], (sides[0][row], sides[1][row]))]
            for row, one in enumerate(bins)
        ]
        first, second = (
            pa.chunked_array(
                [[" ".join(side[r] for r in rows) for rows in chosen]], pa.large_string()
            )
            for side in sides
        )
        return replace(
            split,
            where=f"the joined pairs of {split.where}",
            text=first,
            text_pair=second,
            label=pa.chunked_array([[float(grades[rows].mean()) for rows in chosen]]),
        )

    def _others(self, row: int, members: Sequence[int], pair: tuple[str, str]) -> Iterator[int]:
        """Other rows of the same part of the scale, in random order, each once."""
        # Spelt out here, as a text must not change if the canonical form of keys does.
        rng = random.Random(f"{self.seed} {pair[0]!r} {pair[1]!r}")
        taken = {row}
        while len(taken) < self.n_pairs:
            other = members[rng.randrange(len(members))]
            if other not in taken:
                taken.add(other)
                yield other


def _bins(grades: NDArray[np.float64], n_bins: int) -> list[int]:
    low, width = grades.min(), np.ptp(grades)
    if width == 0:
        return [0] * len(grades)
    return np.minimum((grades - low) / width * n_bins, n_bins - 1).astype(np.int64).tolist()
