"""The table of the data: unique texts, examples in each split, and classes, by task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.report.cells import TaskCorpus
from permafrost.stages.report.entries import DASH
from permafrost.stages.report.tables import Column

_SPLITS = ("train", "dev", "test")
_QUESTIONS = "multiple_choice"


@dataclass(frozen=True)
class DataRow:
    """What is known of the data of one task; None is not known."""

    task: str
    n_texts: int | None
    sizes: tuple[int | None, int | None, int | None]
    """Examples in train, dev and test; of multiple choice questions, not choices."""
    labels: str


def data_rows(columns: Sequence[Column], corpora: Mapping[str, TaskCorpus]) -> tuple[DataRow, ...]:
    """One row per task, in the order of the columns."""
    n_test = {column.task: column.n_test for column in reversed(columns)}
    return tuple(
        _row(task, corpora[task])
        if task in corpora
        # Its texts belong to an evaluation, which says only how many test examples there are.
        else DataRow(task, None, (None, None, n_test[task]), DASH)
        for task in dict.fromkeys(column.task for column in columns)
    )


def _row(task: str, corpus: TaskCorpus) -> DataRow:
    labels, examples = ", ".join(corpus.label_names) or DASH, corpus.examples
    if corpus.task == _QUESTIONS:
        labels = f"each choice of a question: {labels}"
        # An example is a choice, and one choice of each question is right.
        examples = examples.filter(pc.equal(examples.column("label"), 1.0))
    train, dev, test = (_count(examples, split) for split in _SPLITS)
    return DataRow(task, len(corpus.texts), (train, dev, test), labels)


def _count(examples: pa.Table, split: str) -> int:
    return pc.sum(pc.equal(examples.column("split"), split)).as_py() or 0


def are_questions(corpora: Mapping[str, TaskCorpus]) -> bool:
    """Whether a task has questions with choices."""
    return any(corpus.task == _QUESTIONS for corpus in corpora.values())
