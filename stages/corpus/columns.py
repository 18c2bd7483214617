"""The kinds of task, and which columns hold their texts and labels: one config per kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from permafrost.stages.corpus.labels import class_indices, scores
from permafrost.stages.corpus.names import CLASS, GRADE, TEXT, find_column, find_pair
from permafrost.stages.corpus.rows import SplitRows, checked_rows
from permafrost.storage.quoting import quoted

TaskKind = Literal[
    "classification", "pair_classification", "similarity", "unlabelled", "multiple_choice"
]
"""`multiple_choice` is that of sources with graphs alone: no table of texts and labels has it."""

LabelValues = tuple[list[NDArray[np.float64] | None], tuple[str, ...]]
"""Labels of every split as float64 `[n_rows]`, None if there are none; and the names of classes, if any."""


class TaskColumns(BaseModel, ABC):
    """The base class of tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    any_split: ClassVar[bool] = False
    """Whether splits may have any name."""
    usual_labels: ClassVar[tuple[str, ...]] = CLASS
    """The default of `label`, then other usual names of that column."""

    @model_validator(mode="after")
    def _one_role_per_column(self) -> "TaskColumns":
        names = [value for field, value in self if field != "kind" and value is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the column {quoted(twice[0])} has two roles; name different columns")
        return self

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that must hold text: one, or two for pairs."""
        return (self.text,)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns that hold labels: one or none."""
        return ()

    @property
    def class_columns(self) -> tuple[str, ...]:
        """Those label columns that hold classes: one or none."""
        return ()

    @property
    def negative_columns(self) -> tuple[str, ...]:
        """Columns that hold hard negatives: one or none."""
        return ()

    def named(self, available: Sequence[str], where: str) -> "TaskColumns":
        """The task with the actual columns of a file: as given, or by another usual name if not given.

        Raises:
            InputError: a column is missing, or several could be meant.
        """
        columns: dict[str, str] = {}
        if len(self.text_columns) == 1:
            columns["text"] = find_column("text", self.text, TEXT, available, where)
        else:
            names = (self.text_columns[0], self.text_columns[1])
            pair = find_pair(names, ("text", "text_pair"), available, where)
            columns["text"], columns["text_pair"] = pair
        for label in self.label_columns:
            columns["label"] = find_column("label", label, self.usual_labels, available, where)
        for negative in self.negative_columns:
            columns["negative"] = find_column("negative", negative, (negative,), available, where)
        return self.model_copy(update=columns)

    def rows(
        self,
        table: pa.Table,
        split: str,
        where: str,
        class_names: tuple[str, ...] | None = None,
    ) -> SplitRows:
        """The columns of this task, from the table of one split; see `checked_rows`."""
        columns = (self.text_columns, self.label_columns, self.negative_columns)
        return checked_rows(table, columns, split, where, class_names)

    @abstractmethod
    def label_values(self, splits: Sequence[SplitRows]) -> LabelValues:
        """Convert labels as read into class indices or scores.

        Raises:
            InputError: labels are not classes (or scores), have different types, or do not occur in train.
        """


class Classification(TaskColumns):
    """One text, one class."""

    kind: Literal["classification"] = "classification"
    text: str = "text"
    """Column with the text."""
    label: str = "label"
    """Column with the class: integers or strings."""

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The label column."""
        return (self.label,)

    @property
    def class_columns(self) -> tuple[str, ...]:
        """The label column."""
        return (self.label,)

    def label_values(self, splits: Sequence[SplitRows]) -> LabelValues:
        """Class indices."""
        return class_indices(splits)


class PairClassification(TaskColumns):
    """Two texts, one class (paraphrase, entailment)."""

    kind: Literal["pair_classification"] = "pair_classification"
    text: str = "text"
    """Column with the first text."""
    text_pair: str = "text_pair"
    """Column with the second text."""
    label: str = "label"
    """Column with the class: integers or strings."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Both text columns."""
        return (self.text, self.text_pair)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The label column."""
        return (self.label,)

    @property
    def class_columns(self) -> tuple[str, ...]:
        """The label column."""
        return (self.label,)

    def label_values(self, splits: Sequence[SplitRows]) -> LabelValues:
        """Class indices."""
        return class_indices(splits)


class Similarity(TaskColumns):
    """Two texts, one graded score (STS; `kind: sts` is the same)."""

    kind: Literal["similarity"] = "similarity"
    text: str = "text"
    """Column with the first text."""
    text_pair: str = "text_pair"
    """Column with the second text."""
    label: str = "label"
    """Column with the score, any finite number; the scale is kept."""
    usual_labels: ClassVar[tuple[str, ...]] = ("label", *GRADE)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Both text columns."""
        return (self.text, self.text_pair)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The label column."""
        return (self.label,)

    def label_values(self, splits: Sequence[SplitRows]) -> LabelValues:
        """Scores, unchanged."""
        return [scores(split) for split in splits], ()


class Unlabelled(TaskColumns):
    """Texts, or pairs of texts that belong together, without labels; the splits may have any name."""

    kind: Literal["unlabelled"] = "unlabelled"
    text: str = "text"
    """Column with the text; for pairs with the first one (a query)."""
    text_pair: str | None = None
    """Column with the matching text (a document); None for single texts."""
    negative: str | None = None
    """Column with hard negatives, texts that look like a match for the first one but are not: one text or a
    list of texts per row. A row may have none."""
    any_split: ClassVar[bool] = True

    @model_validator(mode="after")
    def _negatives_are_of_pairs(self) -> "Unlabelled":
        if self.negative is not None and self.text_pair is None:
            raise ValueError(
                f"negative is the column {quoted(self.negative)}, but text_pair is not given; negatives "
                "are contrasted with the text that matches the first one, so name its column as text_pair"
            )
        return self

    @property
    def text_columns(self) -> tuple[str, ...]:
        """One column, or two for pairs."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def negative_columns(self) -> tuple[str, ...]:
        """The column of hard negatives, if there is one."""
        return () if self.negative is None else (self.negative,)

    def label_values(self, splits: Sequence[SplitRows]) -> LabelValues:
        """No labels."""
        return [None] * len(splits), ()


def _by_usual_name(fields: Any) -> Any:
    """Accepts mteb's name of a kind of task."""
    of_mteb = isinstance(fields, Mapping) and fields.get("kind") == "sts"
    return {**fields, "kind": "similarity"} if of_mteb else fields


Task = Annotated[
    Classification | PairClassification | Similarity | Unlabelled,
    Field(discriminator="kind"),
    BeforeValidator(_by_usual_name),
]

LABELLED_SPLITS = ("train", "dev", "test")
_SHARES = {"dev": 0.1, "test": 0.2}
"""Usual shares of train, for messages."""


def advice_on_splits(missing: Sequence[str]) -> str:
    """What to do about missing splits, for messages."""
    shares = {split: _SHARES[split] for split in missing if split in _SHARES}
    carved = [
        f"{split}: {{kind: from_train, fraction: {share}}}" for split, share in shares.items()
    ]
    advice = f"Name a file or split for {' and '.join(missing)}"
    return f"{advice}, or take it out of train ({', '.join(carved)})" if carved else advice
