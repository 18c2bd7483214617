"""A small corpus of random token states whose class one token in each text gives away."""

import numpy as np
import pyarrow as pa

from stages.fit import FitData
from storage.ragged import Ragged
from storage.readers import InMemoryReader

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
