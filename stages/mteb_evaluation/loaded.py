"""The data of a task of mteb, once it is loaded."""

from collections.abc import Sequence
from typing import Any

from mteb.abstasks import AbsTask


def only_data(task: AbsTask) -> Any:
    """The data of the split that is evaluated; None of a task with several splits or subsets."""
    if len(task.eval_splits) != 1 or len(task.hf_subsets) != 1:
        return None
    return data_of(task, task.hf_subsets[0], task.eval_splits[0])


def data_of(task: AbsTask, subset: str, split: str) -> Any:
    """Rows, or for searches a dictionary of queries, corpus and judgements. Tasks with one subset may have
    none of that name."""
    dataset: Any = task.dataset
    return dataset.get(subset, dataset)[split]


def single_classes(labels: Sequence[Any]) -> bool:
    """Whether every label is one class; some tasks have several, or a number, for a text."""
    return all(isinstance(label, int | str) for label in labels)
