"""Pooled vectors by layer, and corpora with labels that a test plants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged
from tests.stages.embed.corpus_features import SIZES
from tests.stages.embed.memory_features import MemoryFeatures

SPLITS = ("train", "dev", "test")


def pooled(layers: Mapping[int | str, np.ndarray], what: str = "hidden_mean") -> MemoryFeatures:
    """One vector per text and layer; a layer `final` makes a backbone with a final norm."""
    n_texts = len(next(iter(layers.values())))
    offsets = np.arange(n_texts + 1, dtype=np.int64)
    arrays = {
        f"pooled/{what}/{k}": Ragged(v.astype(np.float32), offsets) for k, v in layers.items()
    }
    sizes = SIZES.model_copy(update={"has_final_norm": "final" in layers})
    return MemoryFeatures(sizes, arrays)


def corpus_of(
    task: TaskKind,
    labels: Sequence[float | None],
    sides: Sequence[tuple[int, ...]],
    n_texts: int,
    splits: Sequence[str] = SPLITS,
) -> Corpus:
    """Examples in equal parts, split after split."""
    n = len(labels) // len(splits)
    columns = {
        "split": [split for split in splits for _ in range(n)],
        "text": [side[0] for side in sides],
        "text_pair": [side[1] if len(side) > 1 else None for side in sides],
        "label": list(labels),
    }
    texts = tuple(f"text {i}" for i in range(n_texts))
    names = ("no", "yes") if task.endswith("classification") else ()
    table = pa.table(columns, schema=EXAMPLES)
    return Corpus(texts, table, task, names, tuple(map(text_digest, texts)))


def classes(labels: Sequence[int]) -> Corpus:
    """Text i has class `labels[i]`."""
    sides = [(i,) for i in range(len(labels))]
    return corpus_of("classification", [float(y) for y in labels], sides, len(labels))


def with_labels(corpus: Corpus, split: str, labels: Sequence[float]) -> Corpus:
    """The corpus with other labels in one split."""
    rows = corpus.examples.to_pylist()
    new = iter(labels)
    column = [next(new) if row["split"] == split else row["label"] for row in rows]
    examples = corpus.examples.set_column(3, EXAMPLES.field("label"), [column])
    return replace(corpus, examples=examples)
