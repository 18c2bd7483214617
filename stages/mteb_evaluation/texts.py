"""The texts that an evaluation will embed, so that they can be extracted ahead of it."""

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.storage.keys import text_digest

SEED = 42
"""Seed of mteb's tasks."""


def texts_corpus(asked: Iterable[str], role: str) -> Corpus:
    """Unique texts as a corpus of kind `unlabelled` whose only split is their role, without blank ones."""
    texts = tuple(text for text in asked if text.strip())
    columns = {"split": [role] * len(texts), "text": list(range(len(texts)))}
    empty = [None] * len(texts)
    examples = pa.table({n: columns.get(n, empty) for n in EXAMPLES.names}, schema=EXAMPLES)
    return Corpus(texts, examples, "unlabelled", (), tuple(map(text_digest, texts)))


def drawn_rows(labels: Sequence[int | str], per_label: int, n_draws: int) -> list[int]:
    """Training rows in any of mteb's draws of `per_label` rows per class, ascending.

    mteb shuffles the rows of the previous draw with a generator that is reseeded every time.
    """
    order, drawn = list(range(len(labels))), set[int]()
    for _ in range(n_draws):
        np.random.RandomState(SEED).shuffle(order)
        counts: dict[int | str, int] = {}
        for row in order:
            if counts.setdefault(labels[row], 0) < per_label:
                counts[labels[row]] += 1
                drawn.add(row)
    return sorted(drawn)


def sampled(texts: list[str], limit: int | None) -> list[str]:
    """The texts that mteb draws for clustering; all without a limit."""
    if limit is None:
        return texts
    return [texts[i] for i in random.Random(SEED).sample(range(len(texts)), min(limit, len(texts)))]
