"""Where dev and test come from: as given, or carved from the training examples."""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_SEED
from permafrost.stages.corpus.columns import LABELLED_SPLITS, Task, TaskKind
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

N_BINS = 10
"""Strata of graded pairs, of equal size."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DevAsGiven(_Config):
    """The development split is the one given, if any."""

    kind: Literal["given"] = "given"
    is_carved: ClassVar[bool] = False
    """Whether it is carved from train."""

    def carve(
        self, examples: pa.Table, digests: Sequence[str], label_names: Sequence[str]
    ) -> pa.Table:
        """The examples as they are."""
        return examples


class _CarvedDev(_Config, ABC):
    fraction: float
    seed: int
    is_carved: ClassVar[bool] = True
    """Whether it is carved from train."""

    @abstractmethod
    def unit(self, first: str, second: str) -> str:
        """Name of the unit that must not be split, from the digests of an example's texts ("" if single)."""

    def carve(
        self, examples: pa.Table, digests: Sequence[str], label_names: Sequence[str]
    ) -> pa.Table:
        """Rename the split of some training examples to `dev`, without changing the order of the rows.

        The distinct texts (or pairs, or first texts of pairs) with the lowest seeded hashes are chosen, so
        that neither the order of the rows nor repetitions matter, and equal ones stay together. The last one
        of a class stays in train.

        Args:
            examples: of a corpus.
            digests: of its texts.
            label_names: of the classes; empty if labels are not classes.

        Raises:
            InputError: one of the two splits would be empty.
        """
        columns = (examples.column("split"), examples.column("text"), examples.column("text_pair"))
        splits, texts, pairs = (column.to_pylist() for column in columns)
        rows: dict[str, list[int]] = {}
        for i, (split, text, pair) in enumerate(zip(splits, texts, pairs, strict=True)):
            if split == "train":
                second = "" if pair is None else digests[int(pair)]
                name = f"{self.seed}:{self.unit(digests[int(text)], second)}"
                rows.setdefault(hashlib.sha256(name.encode()).hexdigest(), []).append(i)
        n_dev = round(self.fraction * len(rows))
        chosen = _spared(rows, examples, label_names, n_dev)
        if not 0 < n_dev < len(rows):
            raise InputError(
                f"dev fraction {self.fraction} of {len(rows)} distinct training texts is {n_dev}, which "
                f"leaves {'dev' if n_dev == 0 else 'train'} empty; change the fraction or give more "
                "texts"
            )
        if not chosen:
            raise InputError(
                f"none of {len(rows)} distinct training texts can become dev, as each is the last one of its "
                "class; give more texts of each class"
            )
        names = np.array(splits, dtype=object)
        for key in chosen:
            names[rows[key]] = "dev"
        return examples.set_column(0, "split", pa.array(names, pa.string()))


class DevFromTrain(_CarvedDev):
    """A share of the training examples becomes the development split.

    Chosen by a seeded hash of the texts, so the order of the rows does not matter and equal texts
    stay on one side.
    """

    kind: Literal["from_train"] = "from_train"
    fraction: float = Field(gt=0, lt=1)
    """Share of the distinct training texts (or pairs), rounded to the nearest count."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""

    def unit(self, first: str, second: str) -> str:
        """The whole example."""
        return f"{first}:{second}"


class DevFromTrainQueries(_CarvedDev):
    """A share of the first texts of the training examples becomes the development split, with all their
    examples.

    As `from_train`, but no first text (a pair's query) is on both sides; second texts may be.
    """

    kind: Literal["from_train_queries"] = "from_train_queries"
    fraction: float = Field(gt=0, lt=1)
    """Share of the distinct first texts of train, rounded to the nearest count."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""

    def unit(self, first: str, second: str) -> str:
        """The first text."""
        return first


Dev = Annotated[DevAsGiven | DevFromTrain | DevFromTrainQueries, Field(discriminator="kind")]
DevOfQueries = Annotated[DevAsGiven | DevFromTrainQueries, Field(discriminator="kind")]
"""For corpora where a query may have several examples."""


class TestAsGiven(_Config):
    """The test split is the one given, if any."""

    kind: Literal["given"] = "given"
    is_carved: ClassVar[bool] = False
    """Whether it is carved from train."""

    def carve(self, examples: pa.Table, digests: Sequence[str], task: TaskKind) -> pa.Table:
        """The examples as they are."""
        return examples


class _CarvedTest(_Config):
    fraction: float
    seed: int
    is_carved: ClassVar[bool] = True
    """Whether it is carved from train."""
    keeps_second_texts: ClassVar[bool] = True
    """Whether the second text of a pair must be on one side too."""

    def carve(self, examples: pa.Table, digests: Sequence[str], task: TaskKind) -> pa.Table:
        """Rename the split of some training examples to `test`, without changing the order of the rows.

        Examples that share a text (a first text, for `from_train_queries`) form one group. Every class, or
        every decile of graded pairs, contributes its share, by largest remainder; within each, groups with
        low seeded hashes come first, so that the order of the rows does not matter. A group larger than what
        is still needed stays in train, and so does the last group of a class, or one that has a class' last
        rows beside those of another class; test may then be smaller than its share.

        Args:
            examples: of a corpus.
            digests: of its texts.
            task: of the corpus.

        Raises:
            InputError: the test split would be empty, or less than half of its share as most classes have one
                text.
        """
        groups = self._groups(examples, digests, task)
        strata = _strata(groups, task)
        n_rows = sum(len(g.rows) for g in groups)
        left = _class_counts(examples, [i for g in groups for i in g.rows], task)
        chosen: list[int] = []
        # A fraction, so that 0.1 of 30 is exactly 3 on every machine.
        share = Fraction(str(self.fraction))
        for stratum, n_wanted in zip(strata, _quotas(strata, share), strict=True):
            for group in sorted(stratum, key=lambda g: g.order)[: len(stratum) - 1]:
                taken = _class_counts(examples, group.rows, task)
                if len(group.rows) <= n_wanted and all(left[c] > n for c, n in taken.items()):
                    left -= taken
                    chosen += group.rows
                    n_wanted -= len(group.rows)
        n_asked, n_alone = round(share * n_rows), sum(len(stratum) == 1 for stratum in strata)
        is_short = len(chosen) < n_asked / 2 or n_alone == len(strata)
        if task != "similarity" and len(strata) > 1 and n_alone > len(strata) / 2 and is_short:
            raise InputError(
                f"test fraction {self.fraction} of {n_rows} training examples leaves {len(chosen)} of "
                f"{n_asked} for test: {n_alone} of the {len(strata)} classes have one text, which stays in "
                "train; is the column of the labels the one that you mean? Else give more texts of each "
                "class, or name a file for test"
            )
        if not chosen:
            raise InputError(
                f"test fraction {self.fraction} of {n_rows} training examples leaves test empty: no text is "
                f"on both sides, so they come in {len(groups)} groups of "
                f"{min(len(g.rows) for g in groups)} to {max(len(g.rows) for g in groups)}, and the last one "
                "of each class stays in train; raise the fraction, give more texts, name a file for test, or "
                "split pairs by their first texts alone (kind: from_train_queries)"
            )
        names = np.array(examples.column("split").to_pylist(), dtype=object)
        names[chosen] = "test"
        return examples.set_column(0, "split", pa.array(names, pa.string()))

    def _groups(self, examples: pa.Table, digests: Sequence[str], task: TaskKind) -> "list[_Group]":
        # Imported here, as only this kind of split needs it.
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        splits = np.array(examples.column("split").to_pylist(), dtype=object)
        train = np.flatnonzero(splits == "train")
        first = examples.column("text").to_numpy()[train].astype(np.int64)
        pairs = examples.column("text_pair").take(pa.array(train))
        has_pairs = not pairs.null_count and self.keeps_second_texts
        second = pairs.to_numpy().astype(np.int64) if has_pairs else first
        links = coo_array(
            (np.ones(len(train)), (first, second)), shape=(len(digests), len(digests))
        )
        of_text = connected_components(links, directed=False)[1]
        lowest: dict[int, str] = {}
        for text in map(int, np.unique(np.concatenate([first, second]))):
            name = of_text[text]
            lowest[name] = min(digests[text], lowest.get(name, digests[text]))
        members: dict[int, list[int]] = {}
        for at, text in enumerate(first.tolist()):
            members.setdefault(of_text[text], []).append(at)
        labels = examples.column("label").take(pa.array(train)).to_pylist()
        return [
            _Group(
                tuple(int(train[at]) for at in rows),
                hashlib.sha256(f"test:{self.seed}:{lowest[name]}".encode()).hexdigest(),
                _label([labels[at] for at in rows], task),
            )
            for name, rows in members.items()
        ]


class TestFromTrain(_CarvedTest):
    """A share of the training examples becomes the test split, before dev is carved from the rest.

    Stratified by class, or by deciles of graded labels. No text is on both sides: examples that share one, in
    pairs as the first or the second text, stay together. A class with one distinct text stays in train, and
    of any other at least one. Where so many classes have one text that test would be less than half of its
    share, it is refused.
    """

    kind: Literal["from_train"] = "from_train"
    fraction: float = Field(gt=0, lt=1)
    """Share of the training examples, rounded; fewer if groups of texts that stay together are too large."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""


class TestFromTrainQueries(_CarvedTest):
    """As `from_train`, but only the first texts of pairs (queries) must be on one side."""

    kind: Literal["from_train_queries"] = "from_train_queries"
    fraction: float = Field(gt=0, lt=1)
    """See `from_train`."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""
    keeps_second_texts: ClassVar[bool] = False


Test = Annotated[TestAsGiven | TestFromTrain | TestFromTrainQueries, Field(discriminator="kind")]
TestOfQueries = Annotated[TestAsGiven | TestFromTrainQueries, Field(discriminator="kind")]
"""For corpora where a query may have several examples."""


def check_splits(task: Task, dev: Dev, test: Test, splits: list[str]) -> None:
    """Check that the names of the splits fit the task.

    Raises:
        ValueError: a name is unknown, or a dev or test split is both given and carved.
    """
    for split in splits:
        if not task.any_split and split not in LABELLED_SPLITS:
            raise ValueError(
                f"the split {quoted(split)} is not one of {', '.join(LABELLED_SPLITS)}; a task of "
                f"kind {quoted(task.kind)} has only these, so rename it (kind 'unlabelled' takes any "
                "name)"
            )
    for name, source in (("dev", dev), ("test", test)):
        if source.is_carved and ("train" not in splits or name in splits):
            raise ValueError(
                f"{name} of kind {source.kind!r} needs a split 'train' and no split {name!r}, but the splits "
                f"are {', '.join(splits)}; leave the field {name} out to use the {name} split as given"
            )


def _spared(
    rows: Mapping[str, Sequence[int]], examples: pa.Table, label_names: Sequence[str], n_dev: int
) -> list[str]:
    """The `n_dev` lowest keys, or fewer, that can be removed without emptying a class of train."""
    if not label_names:
        return sorted(rows)[:n_dev]
    labels = examples.column("label").to_pylist()
    left = Counter(labels[i] for indices in rows.values() for i in indices)
    chosen: list[str] = []
    for key in sorted(rows):
        taken = Counter(labels[i] for i in rows[key])
        if len(chosen) < n_dev and all(left[label] > n for label, n in taken.items()):
            chosen.append(key)
            left -= taken
    return chosen


@dataclass(frozen=True)
class _Group:
    """Training examples that must stay together."""

    rows: tuple[int, ...]
    """Indices of the examples."""
    order: str
    """A seeded hash of their texts."""
    label: float
    """The most frequent class, or the mean grade; 0 without labels."""


def _label(labels: Sequence[float | None], task: TaskKind) -> float:
    present = sorted(label for label in labels if label is not None)
    if not present:
        return 0.0
    if task == "similarity":
        return float(np.mean(present))
    return Counter(present).most_common(1)[0][0]  # the lowest of equally frequent ones


def _strata(groups: Sequence[_Group], task: TaskKind) -> list[list[_Group]]:
    if task == "similarity":
        graded = sorted(groups, key=lambda g: (g.label, g.order))
        bounds = np.linspace(0, len(graded), N_BINS + 1).round().astype(int).tolist()
        bins = [graded[a:b] for a, b in pairwise(bounds)]
        # A bin with one group contributes nothing, as one group of each stays in train.
        return bins if len(graded) >= 2 * N_BINS else [graded]
    by_label: dict[float, list[_Group]] = {}
    for group in groups:
        by_label.setdefault(group.label, []).append(group)
    return [by_label[label] for label in sorted(by_label)]


def _class_counts(examples: pa.Table, rows: Sequence[int], task: TaskKind) -> "Counter[float]":
    """Examples of each class among these; none where labels are no classes."""
    if task == "similarity":
        return Counter()
    labels = examples.column("label").take(pa.array(rows, pa.int64())).drop_null()
    return Counter(labels.to_pylist())


def _quotas(strata: Sequence[Sequence[_Group]], share: Fraction) -> list[int]:
    """Maximum examples taken from every stratum; a remainder that one cannot give passes to the next."""
    sizes = [sum(len(g.rows) for g in stratum) for stratum in strata]
    exact = [share * size for size in sizes]
    quotas = [int(e) if len(s) > 1 else 0 for e, s in zip(exact, strata, strict=True)]
    missing = round(share * sum(sizes)) - sum(quotas)
    able = [i for i, stratum in enumerate(strata) if len(stratum) > 1]
    for i in sorted(able, key=lambda i: (quotas[i] - exact[i], -sizes[i], i))[: max(missing, 0)]:
        quotas[i] += 1
    return quotas
