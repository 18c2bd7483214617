"""Maps of the labelled texts that an mteb task embedded, for classification and clustering."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskClustering, AbsTaskRegression
from numpy.typing import NDArray

from permafrost.stages.metrics.vector_map import MAP_TEXTS, MapNames, spread_evenly, vector_map
from permafrost.stages.mteb_evaluation.examples import only_data, single_classes
from permafrost.stages.mteb_evaluation.vectors import Embedding
from permafrost.storage.keys import text_digest

_KEPT_CHARS = 200
"""Characters of a text that are kept for display."""


@dataclass(frozen=True)
class _Labelled:
    rows: NDArray[np.int64]
    """Row indices into the task's data; only texts that were embedded, each once."""
    texts: list[str]
    labels: list[int | str]


def task_map(
    task: AbsTask, embedding: Embedding, asked: Collection[str], class_names: Sequence[str] = ()
) -> pa.Table | None:
    """See `vector_map`, for at most `MAP_TEXTS` texts, evenly spread over the task's data.

    None for other kinds of task, mteb's clustering before 2024, several splits, subsets or text columns, and
    labels that are not single classes.

    Args:
        task: the evaluated task.
        embedding: of the method.
        asked: digests of the texts that the task embedded; no other text is embedded.
        class_names: by label, if labels are class indices; the labels themselves if not given.
    """
    if (labelled := _labelled(task, asked)) is None:
        return None
    picked = spread_evenly(len(labelled.texts), MAP_TEXTS)
    texts = [labelled.texts[i] for i in picked]
    unique, classes = np.unique(np.array(labelled.labels), return_inverse=True)
    names = [class_names[int(i)] if class_names else str(i) for i in unique.tolist()]
    titles = tuple(" ".join(text.split())[:_KEPT_CHARS] for text in texts)
    return vector_map(
        labelled.rows[picked],
        classes[picked].astype(np.int64),
        embedding(texts, "text"),
        MapNames(tuple(names), titles),
    )


def _labelled(task: AbsTask, asked: Collection[str]) -> _Labelled | None:
    # In mteb regression is a subclass of classification.
    if isinstance(task, AbsTaskRegression) or not isinstance(
        task, AbsTaskClassification | AbsTaskClustering
    ):
        return None
    if (data := only_data(task)) is None or not isinstance(task.input_column_name, str):
        return None
    texts, labels = list(data[task.input_column_name]), list(data[task.label_column_name])
    if not single_classes(labels):
        return None
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text_digest(text), row)
    rows = [row for digest, row in first.items() if digest in asked and texts[row].strip()]
    if not rows:
        return None
    return _Labelled(np.array(rows), [texts[i] for i in rows], [labels[i] for i in rows])
