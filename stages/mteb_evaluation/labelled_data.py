"""Local data of tasks with labelled rows: pairs, classes, clusters."""

import pyarrow as pa

from permafrost.stages.corpus.names import BINARY, CLASS, GRADE, TEXT
from permafrost.stages.corpus.values import numbers_of, texts_of, zeros_and_ones
from permafrost.stages.mteb_evaluation.columns import classes_of, open_file
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.tasks import (
    ClassificationTask,
    ClusteringTask,
    PairClassificationTask,
    StsTask,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def read_sts(config: StsTask) -> LocalData:
    """Graded pairs."""
    file = open_file(config, "pairs")
    names, where = file.pair(config.text, config.text_pair), file.where
    label = file.column("label", config.label, GRADE)
    table = file.read(names, labels=[label])
    grades = numbers_of(table, label, where)
    if len(set(grades)) < 2:
        raise InputError(
            f"all {len(grades)} pairs of {where} have the grade {grades[0]:g}, so there is nothing to "
            f"correlate; name another column as label"
        )
    sides = [texts_of(table, name, where) for name in names]
    return LocalData(
        {"test": {"sentence1": sides[0], "sentence2": sides[1], "score": grades}},
    )


def read_pair_classification(config: PairClassificationTask) -> LocalData:
    """Pairs with the labels 0 and 1; a row may hold lists of all three, as in mteb's older datasets."""
    file = open_file(config, "pairs")
    names, where = file.pair(config.text, config.text_pair), file.where
    label = file.column("label", config.label, BINARY)
    table = file.read_flat(names, [label])
    labels = zeros_and_ones(table, label, where)
    if len(set(labels)) < 2:
        raise InputError(
            f"all {len(labels)} pairs of {where} have the label {labels[0]}; average precision needs both 0 "
            f"and 1"
        )
    sides = [texts_of(table, name, where) for name in names]
    return LocalData(
        {"test": {"sentence1": sides[0], "sentence2": sides[1], "labels": labels}},
    )


def read_classification(config: ClassificationTask) -> LocalData:
    """Train and test texts with class indices; every class in test occurs in train."""
    tables: dict[str, Columns] = {}
    for holds in ("train", "test"):
        table, text, label, where = _labelled(config, holds)
        tables[holds] = {
            "text": texts_of(table, text, where),
            "label": classes_of(table, label, where),
        }
    in_train, in_test = (set(tables[holds]["label"]) for holds in ("train", "test"))
    if unknown := sorted(map(str, in_test - in_train)):
        raise InputError(
            f"{config.file('test')} has the class {quoted(unknown[0])} ({len(unknown)} such), which no row "
            f"of {config.file('train')} has; a classifier cannot know it"
        )
    if len(in_train) < 2:
        raise InputError(
            f"all rows of {config.file('train')} have the same class, so there is nothing to learn; name "
            f"another column as label"
        )
    # If test has two classes, mteb requires the indices 0 and 1 for them.
    first = in_test if len(in_test) == 2 else set[int | str]()
    names = [*sorted(first), *sorted(in_train - first)]
    numbers = {name: number for number, name in enumerate(names)}
    for columns in tables.values():
        columns["label"] = [numbers[name] for name in columns["label"]]
    return LocalData(tables, class_names=tuple(map(str, names)))


def read_clustering(config: ClusteringTask) -> LocalData:
    """Texts with their classes, as names; rows with lists of both are concatenated, as in mteb."""
    table, text, label, where = _labelled(config, "texts")
    labels = classes_of(table, label, where)
    if len(set(labels)) < 2:
        raise InputError(
            f"all {len(labels)} rows of {where} have the same class, so there is nothing to cluster; name "
            f"another column as label"
        )
    # mteb reads -1 as "no label at this level".
    return LocalData(
        {
            "test": {
                "sentences": texts_of(table, text, where),
                "labels": list(map(str, labels)),
            }
        }
    )


def _labelled(
    config: ClassificationTask | ClusteringTask, holds: str
) -> tuple[pa.Table, str, str, str]:
    """A table, its text and label columns, and the name of its file."""
    file = open_file(config, holds)
    text = file.column("text", config.text, TEXT)
    label = file.column("label", config.label, CLASS)
    return file.read_flat([text], [label]), text, label, file.where
