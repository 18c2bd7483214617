"""An embedding that needs no backbone: one random state per word, and any pooling over them."""

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from permafrost.stages.embed import EmbedConfig
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.encoder.vectors import MethodVectors
from permafrost.stages.mteb_evaluation import Embedding, Role
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from tests.stages.embed.corpus_features import SIZES, WIDTH
from tests.stages.embed.memory_features import MemoryFeatures


@cache
def state(word: str) -> Vectors:
    """The same for the same word, always."""
    rng = np.random.default_rng(zlib.crc32(word.encode()))
    return rng.normal(size=(1, WIDTH)).astype(np.float32)


def mean_of_words(texts: Sequence[str]) -> Vectors:
    """What `embedding()` makes of texts, written out."""
    return np.stack([np.concatenate([state(w) for w in t.split()]).mean(axis=0) for t in texts])


class WordStates:
    """Stands for a feature store; remembers which texts were asked for in which role."""

    def __init__(self) -> None:
        self.asked: dict[Role, list[str]] = {}

    def __call__(self, role: Role, texts: Mapping[str, str]) -> list[MemoryFeatures]:
        """Features of texts."""
        self.asked.setdefault(role, []).extend(texts.values())
        words = [t.split() for t in texts.values()]
        data = np.concatenate([state(w) for ws in words for w in ws])
        offsets = np.cumsum([0, *map(len, words)]).astype(np.int64)
        return [MemoryFeatures(SIZES, {"hidden/1": Ragged(data, offsets)})]


def embedding(states: Any = None, **config: Any) -> Embedding:
    """The mean of the words' states, or another method on them."""
    how = EmbedConfig(**{"method": "mean", "layers": "1", **config})
    vectors = MethodVectors(how, SIZES, 1)
    identity = {"method": how.model_dump(mode="json")}
    return Embedding("mean of words", vectors, states or WordStates(), identity, SilentProgress())
