"""Corpora with classes, and vectors of their texts, made up."""

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged
from tests.stages.embed.corpus_features import SIZES, WIDTH
from tests.stages.embed.memory_features import MemoryFeatures

SPLITS = ("train", "dev", "test")


def directions(n: int, seed: int) -> np.ndarray:
    """Random vectors, one per text, whose columns differ in scale and place."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, WIDTH)) * 10.0 ** rng.uniform(-1, 1, WIDTH) + rng.normal(size=WIDTH)
    return rows.astype(np.float32)


def features(layers: dict[int, np.ndarray]) -> MemoryFeatures:
    """Texts of one token each, whose state in layer k is `layers[k]`."""
    n = len(next(iter(layers.values())))
    offsets = np.arange(n + 1, dtype=np.int64)
    return MemoryFeatures(SIZES, {f"hidden/{k}": Ragged(v, offsets) for k, v in layers.items()})


def singles(n: int = 240, n_classes: int = 2, noise: float = 1.0) -> tuple[Corpus, np.ndarray]:
    """Classes by sectors of a random plane, with noise; thirds are train, dev and test."""
    vectors = directions(n, 0)
    rng = np.random.default_rng(1)
    standard = (vectors - vectors.mean(0)) / vectors.std(0)
    scores = standard @ rng.normal(size=(WIDTH, n_classes)) + noise * rng.normal(
        size=(n, n_classes)
    )
    labels = scores.argmax(axis=1).astype(np.float64)
    rows = {
        "split": [SPLITS[i % 3] for i in range(n)],
        "text": list(range(n)),
        "text_pair": [None] * n,
        "label": labels,
    }
    return corpus(rows, n, "classification", tuple(f"class {c}" for c in range(n_classes))), vectors


def pairs(n: int = 300) -> tuple[Corpus, np.ndarray]:
    """Pairs of which the distance tells the class: linear in |u - v|, in u and v not at all."""
    rng = np.random.default_rng(2)
    first = rng.normal(size=(n, WIDTH))
    labels = rng.permutation(n) % 2
    second = first + np.where(labels, 2.0, 0.3)[:, None] * rng.choice([-1, 1], (n, WIDTH))
    vectors = np.concatenate([first, second]).astype(np.float32)
    rows = {
        "split": [SPLITS[i % 3] for i in range(n)],
        "text": list(range(n)),
        "text_pair": list(range(n, 2 * n)),
        "label": labels.astype(np.float64),
    }
    return corpus(rows, 2 * n, "pair_classification", ("near", "far")), vectors


def corpus(rows, n_texts, task, names) -> Corpus:
    """A corpus of these examples."""
    texts = tuple(f"text {i}" for i in range(n_texts))
    table = pa.table({k: pa.array(v, EXAMPLES.field(k).type) for k, v in rows.items()})
    return Corpus(texts, table.cast(EXAMPLES), task, names, tuple(map(text_digest, texts)))


def of_split(made: Corpus, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First texts, second texts (-1 for none) and labels."""
    rows = made.split(split)
    second = rows.column("text_pair").fill_null(-1).to_numpy()
    return rows.column("text").to_numpy(), second, rows.column("label").to_numpy().astype(int)
