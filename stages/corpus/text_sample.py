"""A sample of the texts of a corpus that does not depend on their order."""

import hashlib
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_SEED, MAX_TEXTS
from permafrost.storage.errors import InputError


class TextSample(BaseModel):
    """Which texts of a corpus to sample."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_texts: int = Field(default=100, ge=1, le=MAX_TEXTS)
    """Maximum number; chosen by a hash of seed and text, so that the order of the rows does not matter."""
    min_words: int = Field(default=16, ge=1, le=MAX_TEXTS)
    """Shorter texts are left out; words are separated by white space."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""


def choose_texts(texts: Sequence[str], sample: TextSample) -> list[str]:
    """The texts of the sample, each once, in the order of their hashes.

    Raises:
        InputError: no text is long enough.
    """
    long = [t for t in dict.fromkeys(texts) if len(t.split()) >= sample.min_words]
    if not long:
        raise InputError(
            f"none of {len(texts)} texts has {sample.min_words} words or more; lower min_words or give "
            f"longer texts"
        )
    return sorted(long, key=lambda text: _hash(sample.seed, text))[: sample.n_texts]


def _hash(seed: int, text: str) -> str:
    return hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()
