"""Vectors for the texts of an evaluation, from the feature store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import Features
from permafrost.stages.mteb_evaluation.task import Role
from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest, text_digest
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.stages.encoder.vectors import TextVectors

FeaturesOf = Callable[[Role, Mapping[str, str]], Sequence[Features]]
"""Gives the features of texts (by digest) in a role, one per prompt of an ensemble."""


@dataclass(frozen=True)
class Embedding:
    """A method on stored features."""

    method: str
    """Its display name."""
    vectors: TextVectors
    features: FeaturesOf
    identity: Mapping[str, Any]
    """Everything that determines the vectors: stores with their recipes, and method or trained head."""
    progress: Progress
    trained_on: frozenset[str] | None = None
    """Digests of the texts on which it was trained or its whitening fitted; None if there are none."""
    choice: Mapping[str, str] = field(default_factory=dict)
    """What was chosen on dev, for tables."""

    @property
    def digest(self) -> str:
        """Digest of the identity."""
        return digest(self.identity)

    def __call__(self, texts: Sequence[str], role: Role) -> Vectors:
        """One vector per text `[n, d]` float32. Equal texts are computed once.

        A blank text has no token, so it gets a zero vector, whose cosine with any other is 0;
        sentence-transformers would embed its special tokens.

        Raises:
            InputError: all texts are blank, or a vector is not finite or cannot be computed.
        """
        return without_blank_ones(texts, role, self.method, partial(self._of, role))

    def _of(self, role: Role, unique: Mapping[str, str]) -> Vectors:
        prompt_features = self.features(role, unique)
        parts = [self.vectors.of(member, self.progress) for member in prompt_features]
        return self.vectors.joined(parts, prompt_features[0].name)


def without_blank_ones(
    texts: Sequence[str], role: Role, method: str, compute: Callable[[Mapping[str, str]], Vectors]
) -> Vectors:
    """One vector per text `[n, d]` float32, zeros for a blank one; `compute` gets the others by digest, once.

    Raises:
        InputError: all texts are blank.
    """
    digests = [text_digest(text) for text in texts]
    unique = {d: text for d, text in zip(digests, texts, strict=True) if text.strip()}
    if not unique:
        raise InputError(
            f"all {len(texts)} texts of the role {quoted(role)} are blank, so {quoted(method)} "
            f"has nothing to embed"
        )
    vectors = compute(unique)
    rows = {d: row for row, d in enumerate(unique)}
    out = np.zeros((len(texts), vectors.shape[1]), np.float32)
    rows_with_text = [i for i, d in enumerate(digests) if d in rows]
    out[rows_with_text] = vectors[[rows[digests[i]] for i in rows_with_text]]
    return out
