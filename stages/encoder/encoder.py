"""Texts in, vectors out: a loaded backbone with a trained head or a method on it, and no store."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32

from permafrost.stages.corpus.given_texts import require_no_table
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.encoder.answers import (
    answered,
    answers_of,
    require_strings,
)
from permafrost.stages.encoder.code_of import code_of
from permafrost.stages.encoder.features import compute_features
from permafrost.stages.encoder.predicted import Predicted
from permafrost.stages.encoder.vectors import HeadVectors, MethodVectors, OnLatents, TextVectors
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.memory import Splitter
from permafrost.stages.extraction.recipes.inputs import Encoded, numbered_by_first
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.extraction.token_budget import batch_tokens, batches
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class Encoder:
    """A loaded backbone with a head or method on it; created by `load_encoder` and `method_encoder`.

    Vectors are those of `permafrost embed` for the same head or method: the same recipe, max_length and
    span, and features rounded as in the feature store. On the same device, different batches change a feature
    by the noise of the compute dtype, which the rounding may turn into one step of the storage dtype.
    """

    backbone: Backbone
    targets: tuple[ExtractTarget, ...]
    """One target, or one per prompt of an ensemble, in order."""
    vectors: TextVectors
    runtime: ExtractRuntime
    """Limits of a batch."""
    name: str = ""
    """Of the trained head, `fit/<key>`; empty where it has none."""

    def __repr__(self) -> str:
        name = self.name or self.targets[0].files.source
        arrays = self.targets[0].arrays
        read = arrays[0] if len(arrays) == 1 else f"{len(arrays)} arrays"
        return f"Encoder({name}, {_kind(self.vectors)} of {read}, width {self.d_out})"

    @property
    def d_out(self) -> int:
        """Width of a vector."""
        return self.vectors.d_out

    @property
    def max_length(self) -> int:
        """Maximum tokens per input, special tokens and prompt words included; longer texts are truncated."""
        return self.targets[0].max_length

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the vectors, but for the noise of other batches and devices."""
        recipes = [target.recipe for target in self.targets]
        return {
            "features": [target.identity for target in self.targets],
            "arrays": self.targets[0].arrays,
            "vectors": self.vectors.identity,
            "code": code_of(recipes),
        }

    def encode(
        self, texts: Iterable[str], progress: Progress | None = None
    ) -> Float32[np.ndarray, "n d"]:
        """One vector per text, in order, `[n_texts, d_out]` float32. Equal texts are computed once.

        Args:
            texts: any number of texts.
            progress: receives the number of texts done; silent if not given.

        Raises:
            InputError: `texts` is a single text instead of a list, or holds something else; or a text is
                empty or has no token left. The message gives its index.
            OverflowRangeError: an activation does not fit the dtype in which features are stored.
        """
        if isinstance(texts, str):
            raise InputError(
                f"encode was given the text {quoted(texts)} where a list of texts belongs; write [text]"
            )
        # What gives its texts only once is read more often than that.
        require_no_table(texts)
        texts = list(texts)
        require_strings("texts", texts)
        indices = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        if not indices:
            return np.empty((0, self.d_out), np.float32)
        unique = list(indices)
        progress = progress or SilentProgress()
        progress.start("encode", len(unique) * len(self.targets), "texts")
        try:
            parts = [self._under(target, unique, texts, progress) for target in self.targets]
        finally:
            progress.finish()
        vectors = self.vectors.joined(
            parts, lambda i: f"text {texts.index(unique[i])} ({quoted(unique[i])})"
        )
        return vectors[[indices[text] for text in texts]]

    def predict(
        self,
        texts: Iterable[str],
        text_pairs: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> Predicted:
        """The answers of a trained head: `PredictedClasses` or `PredictedScores`, in order.

        They are those of the head's score, but for the noise of other batches. Equal texts are computed once.

        Args:
            texts: any number of texts; of pairs the first ones.
            text_pairs: the second texts, for a head that was trained on pairs.
            progress: receives the number of texts done; silent if not given.

        Raises:
            InputError: a method without training or a head trained on pairs without labels, which have
                vectors alone; single texts for a head on pairs or the reverse; or a blank text.
            OverflowRangeError: an activation does not fit the dtype in which features are stored.
        """
        answers = answers_of(self.vectors)
        encoder = replace(self, vectors=answers)
        return answered(answers, lambda each: encoder.encode(each, progress), texts, text_pairs)

    def _under(
        self,
        target: ExtractTarget,
        unique: list[str],
        texts: Sequence[str],
        progress: Progress,
    ) -> Vectors:
        """Vectors of unique texts under one recipe."""
        out: Vectors | None = None
        splitter = Splitter(self.backbone.device)
        for start in range(0, len(unique), self.runtime.block_texts):
            block = unique[start : start + self.runtime.block_texts]
            with numbered_by_first(texts, block):
                encoded = target.encoded(block)
            # Longest first, as in a segment of a store, which needs hardly any padding.
            order = np.argsort(-encoded.token_ids.lengths, kind="stable")
            budget = batch_tokens(target, target.arrays, self.runtime, self.backbone.device)
            for run in batches(encoded.token_ids.lengths[order], budget):
                indices = order[run]
                vectors = self.of_batch(
                    target, [block[i] for i in indices.tolist()], encoded.take(indices), splitter
                )
                if out is None:
                    out = np.empty((len(unique), vectors.shape[1]), np.float32)
                out[start + indices] = vectors
                progress.advance(len(indices))
        assert out is not None, "there is at least one text"
        return out

    def of_batch(
        self,
        target: ExtractTarget,
        texts: Sequence[str],
        encoded: Encoded,
        splitter: Splitter | None = None,
    ) -> Vectors:
        """Vectors of one padded batch, before they are combined over prompts and post-processed.

        Args:
            target: one of the encoder's.
            texts: for messages.
            encoded: the texts under the recipe of `target`.
            splitter: halves a batch that does not fit in memory, and knows the sizes that did not before.

        Raises:
            PermafrostError: a text does not fit in memory even by itself.
        """
        parts = list[Vectors]()

        def compute(part: Encoded) -> Vectors:
            # Parts are computed in order, each when those before it are there.
            first = sum(map(len, parts))
            some = texts[first : first + len(part)]
            features = compute_features(self.backbone, target, some, part)
            return self.vectors.of(features, SilentProgress())

        for vectors in (splitter or Splitter(self.backbone.device)).results(encoded, compute):
            parts.append(vectors)
        return np.concatenate(parts)


def _kind(vectors: TextVectors) -> str:
    """What the head or method is called in an experiment."""
    if isinstance(vectors, HeadVectors):
        return vectors.head.config.head.kind
    if isinstance(vectors, OnLatents):
        return vectors.config.head.kind
    return vectors.config.method.kind if isinstance(vectors, MethodVectors) else "a vector"
