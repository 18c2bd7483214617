"""Local texts with classes, scored as mteb's Classification tasks are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.label_types import Labelled, typed_alike
from permafrost.stages.corpus.values import texts_of
from permafrost.stages.mteb_evaluation.columns import classes_of, open_labelled
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.task import LocalTask, Role
from permafrost.stages.mteb_evaluation.texts import drawn_rows
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_OF_TWO_CLASSES = ("ap", "ap_weighted")


class ClassificationTask(LocalTask):
    """Logistic regression on a few vectors per class, repeated several times."""

    mteb_category: ClassVar[str] = "Classification"
    default_score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = (
        *("accuracy", "f1", "f1_weighted", "precision", "precision_weighted"),
        *("recall", "recall_weighted", "ap", "ap_weighted"),
    )
    scored_files: ClassVar[tuple[str, ...]] = ("test",)

    type: Literal["classification"] = "classification"
    train: str = "train"
    """File, without extension, from which training texts are drawn."""
    test: str = "test"
    """File, without extension, of the test texts."""
    text: str = "text"
    """Column with the text."""
    label: str = "label"
    """Column with the class: integers or strings."""
    samples_per_label: int = Field(default=8, ge=1, le=MAX_STEPS)
    """Training texts drawn per class, in mteb's way; mteb's EmotionClassification uses 16."""
    n_experiments: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Number of draws; the score is the mean over them."""

    @property
    def stems(self) -> dict[str, str]:
        """Train and test."""
        return {"train": self.train, "test": self.test}

    def read(self) -> LocalData:
        """Train and test texts with class indices; every class in test occurs in train.

        Raises as `LocalTask.read`.
        """
        tables: dict[str, Columns] = {}
        parts = ("train", "test")
        opened = [open_labelled(self, holds, self.text, self.label) for holds in parts]
        alike = typed_alike(
            [Labelled.of_file(table, Path(path), label) for table, _, label, path in opened]
        )
        for holds, found, (_, text, label, path) in zip(parts, alike, opened, strict=True):
            tables[holds] = {
                "text": texts_of(found.table, text, path),
                "label": classes_of(found.table, label, path),
            }
        in_train, in_test = (set(tables[holds]["label"]) for holds in ("train", "test"))
        if unknown := sorted(map(str, in_test - in_train)):
            raise InputError(
                f"{self.file('test')} has the class {quoted(unknown[0])} ({len(unknown)} such), which no row "
                f"of {self.file('train')} has; a classifier cannot know it"
            )
        if len(in_train) < 2:
            raise InputError(
                f"all rows of {self.file('train')} have the same class, so there is nothing to learn; name "
                f"another column as label"
            )
        if self.score in _OF_TWO_CLASSES and len(in_test) != 2:
            others = ", ".join(s for s in self.scores if s not in _OF_TWO_CLASSES)
            raise InputError(
                f"main_score is {quoted(self.score)}, which mteb has for a test of two classes alone, but "
                f"{self.file('test')} has {len(in_test)}; take one of {others}"
            )
        # If test has two classes, mteb requires the indices 0 and 1 for them.
        first = in_test if len(in_test) == 2 else set[int | str]()
        names = [*sorted(first), *sorted(in_train - first)]
        numbers = {name: number for number, name in enumerate(names)}
        for columns in tables.values():
            columns["label"] = [numbers[name] for name in columns["label"]]
        return LocalData(tables, class_names=tuple(map(str, names)))

    def asked_texts(self, data: LocalData) -> dict[Role, list[str]]:
        """The training texts of any draw, and all test texts."""
        train = data.tables["train"]
        drawn = drawn_rows(train["label"], self.samples_per_label, self.n_experiments)
        return {"text": [*(train["text"][i] for i in drawn), *data.tables["test"]["text"]]}

    def mteb_class(self) -> Any:
        """See `LocalTask.mteb_class`."""
        from mteb.abstasks import AbsTaskClassification

        return AbsTaskClassification

    def settings(self) -> Mapping[str, Any]:
        """The draws."""
        return {"samples_per_label": self.samples_per_label, "n_experiments": self.n_experiments}
