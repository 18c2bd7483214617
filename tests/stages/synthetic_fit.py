"""Small corpora of random token states whose answer one token in each text gives away."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from permafrost.stages.fit import Contrastive, CosineMse, FitData
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader

WIDTH = 12


def features(n_texts, seed, labels=None, strength=4.0):
    """Ragged float32 states; where labels are given, one token points along its class's axis."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 12, n_texts)
    texts = [rng.normal(size=(n, WIDTH)).astype(np.float32) + 0.5 for n in lengths]
    if labels is not None:
        for rows, label in zip(texts, labels, strict=True):
            rows[rng.integers(len(rows)), int(label)] += strength
    return Ragged.from_arrays(texts)


def pooled_by_extraction(reader):
    """One row per text, the mean of its tokens, under the name that extraction gives such an array."""
    pooled = np.add.reduceat(reader.features.data, reader.features.offsets[:-1])
    pooled /= reader.lengths[:, None]
    name = f"pooled/hidden_mean/{reader.array.rpartition('/')[2]}"
    return InMemoryReader(name, Ragged(pooled, np.arange(reader.n_texts + 1)))


def make_data(n_train=96, n_dev=40, n_test=40, classes=2, seed=0):
    """Two arrays: `hidden/1` is noise, `hidden/6` holds the class."""
    rng = np.random.default_rng([seed, 1])
    n_texts = n_train + n_dev + n_test
    labels = rng.permutation(n_texts) % classes
    split = ["train"] * n_train + ["dev"] * n_dev + ["test"] * n_test
    # Examples come in another order than texts do.
    order = rng.permutation(n_texts)
    examples = pa.table(
        {
            "split": pa.array([split[i] for i in order]),
            "text": pa.array(order, pa.int64()),
            "text_pair": pa.nulls(n_texts, pa.int64()),
            "label": pa.array(labels[order].astype(np.float64)),
        }
    )
    return FitData(
        readers={
            "hidden/1": InMemoryReader("hidden/1", features(n_texts, seed)),
            "hidden/6": InMemoryReader("hidden/6", features(n_texts, seed, labels)),
        },
        examples=examples,
        label_names=tuple(f"class {c}" for c in range(classes)),
        digests=tuple(f"{i:064x}" for i in range(n_texts)),
    )


def make_pairs(task, n_train=64, n_dev=32, n_test=32, seed=0, strength=6.0):
    """Pairs whose answer one token in each of their texts gives away; texts 2 i and 2 i + 1 are a pair.

    The telling token stands out along axis 0. Along the others, classes of pairs: the number of texts, of
    two, that point along axis 1 and not along axis 2. Graded pairs: 1 to 5, how much both point the
    same way. Pairs without labels: both point the same way.
    """
    rng = np.random.default_rng([seed, 2])
    n = n_train + n_dev + n_test
    first, other = rng.normal(size=(2, n, WIDTH - 1))
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    second, labels = first, None
    match task:
        case "pair_classification":
            kinds = rng.integers(0, 2, (2, n))
            first, second = np.eye(WIDTH - 1)[kinds]
            labels = kinds.sum(axis=0).astype(np.float64)
        case "similarity":
            grade = rng.uniform(0, 1, n)
            second = grade[:, None] * first + (1 - grade[:, None]) * other
            labels = 1 + 4 * grade
    rows = features(2 * n, seed)
    marked = np.ones((2 * n, WIDTH), np.float32)
    marked[:, 1:] = np.stack([first, second], axis=1).reshape(2 * n, WIDTH - 1)
    rows.data[rows.offsets[:-1] + rng.integers(0, rows.lengths)] += np.float32(strength) * marked
    order = rng.permutation(n)
    split = np.array(["train"] * n_train + ["dev"] * n_dev + ["test"] * n_test)
    examples = pa.table(
        {
            "split": pa.array(split),
            "text": pa.array(2 * order, pa.int64()),
            "text_pair": pa.array(2 * order + 1, pa.int64()),
            "label": pa.nulls(n, pa.float64()) if labels is None else pa.array(labels[order]),
        }
    )
    return FitData(
        readers={"hidden/6": InMemoryReader("hidden/6", rows)},
        examples=examples,
        label_names=("none", "one", "both") if task == "pair_classification" else (),
        digests=tuple(f"{i:064x}" for i in range(2 * n)),
        task=task,
    )


PAIR_TASKS = {
    "pair_classification": {"metric": "accuracy"},
    "similarity": {"metric": "spearman_pearson", "loss": CosineMse()},
    "unlabelled": {"metric": "mrr", "loss": Contrastive(similarity="cosine", temperature=0.2)},
}
"""Kind of corpus to what a `FitConfig` needs for it."""


def with_column(data, **changes):
    """The data with other columns of its examples."""
    table = data.examples
    for name, values in changes.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return replace(data, examples=table)


def same_fit(one, other):
    """Bit for bit."""
    assert one.history == other.history
    assert one.log == other.log
    assert one.best == other.best
    assert one.state.keys() == other.state.keys()
    for name, value in one.state.items():
        assert torch.equal(value, other.state[name]), name
