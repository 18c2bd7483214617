"""What a corpus is for, and which columns hold it: one config per kind of task."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from permafrost.stages.bounds import MAX_SEED
from permafrost.storage.quoting import quoted

TaskKind = Literal["classification", "pair_classification", "similarity", "unlabelled"]


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Columns(_Config):
    @model_validator(mode="after")
    def _one_role_per_column(self) -> "_Columns":
        names = [value for field, value in self if field != "kind" and value is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the column {quoted(twice[0])} has two roles; name different columns")
        return self


class Classification(_Columns):
    """One text, one class."""

    kind: Literal["classification"] = "classification"
    text: str = "text"
    """Column with the text."""
    label: str = "label"
    """Column with the class: integers or strings."""


class PairClassification(_Columns):
    """Two texts, one class (paraphrase, entailment)."""

    kind: Literal["pair_classification"] = "pair_classification"
    text: str = "text"
    """Column with the first text."""
    text_pair: str = "text_pair"
    """Column with the second text."""
    label: str = "label"
    """Column with the class: integers or strings."""


class Similarity(_Columns):
    """Two texts, one graded score (STS)."""

    kind: Literal["similarity"] = "similarity"
    text: str = "text"
    """Column with the first text."""
    text_pair: str = "text_pair"
    """Column with the second text."""
    label: str = "label"
    """Column with the score, any finite number; the scale is kept."""


class Unlabelled(_Columns):
    """Texts, or pairs of texts that belong together, without labels; the splits may have any name."""

    kind: Literal["unlabelled"] = "unlabelled"
    text: str = "text"
    """Column with the text, of pairs the first (a query)."""
    text_pair: str | None = None
    """Column with the text that belongs to it (a document); None for single texts."""
    negative: str | None = None
    """Column with hard negatives, texts that do not belong to the first one though they look it: one text or
    a list of texts for each row. A row may have none."""

    @model_validator(mode="after")
    def _negatives_are_of_pairs(self) -> "Unlabelled":
        if self.negative is not None and self.text_pair is None:
            raise ValueError(
                f"negative is the column {quoted(self.negative)}, but text_pair is not given; negatives "
                "are told from the text that belongs to the first one, so name its column as text_pair"
            )
        return self


Task = Annotated[
    Classification | PairClassification | Similarity | Unlabelled, Field(discriminator="kind")
]


class DevAsGiven(_Config):
    """The development split is the one given, if any."""

    kind: Literal["given"] = "given"


class DevFromTrain(_Config):
    """A share of the training examples becomes the development split.

    Chosen by a seeded hash of the texts, so the order of the rows plays no role and equal texts
    stay on one side.
    """

    kind: Literal["from_train"] = "from_train"
    fraction: float = Field(gt=0, lt=1)
    """Share of the distinct training texts (or pairs), rounded to the nearest count."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice."""


class DevFromTrainQueries(_Config):
    """A share of the first texts of the training examples becomes the development split, with all their
    examples.

    As `from_train`, but no first text (a query, of pairs) is on both sides; second texts may be.
    """

    kind: Literal["from_train_queries"] = "from_train_queries"
    fraction: float = Field(gt=0, lt=1)
    """Share of the distinct first texts of train, rounded to the nearest count."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice."""


CarvedDev = DevFromTrain | DevFromTrainQueries
Dev = Annotated[DevAsGiven | DevFromTrain | DevFromTrainQueries, Field(discriminator="kind")]


class TestAsGiven(_Config):
    """The test split is the one given, if any."""

    kind: Literal["given"] = "given"


class TestFromTrain(_Config):
    """A share of the training examples becomes the test split, before dev is taken from the others.

    Stratified by class, or by deciles of graded labels. No text is on both sides: examples that share one,
    of pairs on either side, stay together. A class with one distinct text stays in train.
    """

    kind: Literal["from_train"] = "from_train"
    fraction: float = Field(gt=0, lt=1)
    """Share of the training examples, rounded; less where texts that stay together are too many for it."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice."""


class TestFromTrainQueries(_Config):
    """As `from_train`, but of pairs only first texts (queries) stay on one side; second texts need not."""

    kind: Literal["from_train_queries"] = "from_train_queries"
    fraction: float = Field(gt=0, lt=1)
    """See `from_train`."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice."""


CarvedTest = TestFromTrain | TestFromTrainQueries
Test = Annotated[TestAsGiven | TestFromTrain | TestFromTrainQueries, Field(discriminator="kind")]

LABELLED_SPLITS = ("train", "dev", "test")
_SHARES = {"dev": 0.1, "test": 0.2}
"""Shares of train that are usual, for messages."""


def advice_on_splits(missing: Sequence[str]) -> str:
    """What to do about splits that are not there, for messages."""
    shares = {split: _SHARES[split] for split in missing if split in _SHARES}
    carved = [
        f"{split}: {{kind: from_train, fraction: {share}}}" for split, share in shares.items()
    ]
    found = f"Name a file or split for {' and '.join(missing)}"
    return f"{found}, or take it out of train ({', '.join(carved)})" if carved else found


def check_splits(task: Task, dev: Dev, test: Test, splits: list[str]) -> None:
    """Check that the names of the splits go with the task.

    Raises:
        ValueError: a name that is not known, or a dev or test split that is both given and carved.
    """
    if not isinstance(task, Unlabelled):
        for split in splits:
            if split not in LABELLED_SPLITS:
                raise ValueError(
                    f"the split {quoted(split)} is not one of {', '.join(LABELLED_SPLITS)}; a task of "
                    f"kind {quoted(task.kind)} has only these, so rename it (kind 'unlabelled' takes any "
                    "name)"
                )
    for name, source, carved in (("dev", dev, CarvedDev), ("test", test, CarvedTest)):
        if isinstance(source, carved) and ("train" not in splits or name in splits):
            raise ValueError(
                f"{name} of kind {source.kind!r} needs a split 'train' and no split {name!r}, but the splits "
                f"are {', '.join(splits)}; leave the field {name} out to use the {name} split as given"
            )
