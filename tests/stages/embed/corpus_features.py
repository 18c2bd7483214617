"""Features of the texts of a similarity corpus, layer by layer as a test wants them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged
from tests.stages.embed.memory_features import MemoryFeatures

N_TEXTS, WIDTH = 60, 8
SIZES = BackboneSizes(
    model_type="llama",
    n_layers=3,
    d_model=WIDTH,
    d_value=WIDTH,
    n_attn_heads=2,
    n_kv_heads=2,
    d_head=4,
    has_final_norm=False,
    is_decoder=True,
    max_positions=64,
)


def directions(seed: int) -> np.ndarray:
    """One random vector per text."""
    return np.random.default_rng(seed).normal(size=(N_TEXTS, WIDTH)).astype(np.float32)


def cosine(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of pairs of rows."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return (unit[first] * unit[second]).sum(axis=1)


def graded(truth: np.ndarray, splits: Sequence[str] = ("train", "dev", "test")) -> Corpus:
    """Pairs of texts of their own in each split, graded by the cosine of `truth`."""
    per_split = N_TEXTS // len(splits)
    rows: list[dict[str, object]] = []
    rng = np.random.default_rng(1)
    for at, split in enumerate(splits):
        first, second = at * per_split + rng.integers(0, per_split, (2, 40))
        keep = first != second
        labels = cosine(truth, first[keep], second[keep])
        rows += [
            {"split": split, "text": int(a), "text_pair": int(b), "label": float(g)}
            for a, b, g in zip(first[keep], second[keep], labels, strict=True)
        ]
    columns = {name: [row[name] for row in rows] for name in EXAMPLES.names}
    texts = tuple(f"text {i}" for i in range(N_TEXTS))
    table = pa.table(columns, schema=EXAMPLES)
    return Corpus(texts, table, "similarity", (), tuple(map(text_digest, texts)))


def features(layers: dict[int, np.ndarray]) -> MemoryFeatures:
    """Texts of one token each, whose state in layer k is `layers[k]`."""
    offsets = np.arange(N_TEXTS + 1, dtype=np.int64)
    return MemoryFeatures(SIZES, {f"hidden/{k}": Ragged(v, offsets) for k, v in layers.items()})
