"""From what a trained head makes of each text to its answers: classes of texts and pairs, scores of pairs.

Texts that occur in several pairs are computed once. Answers are those of the head's score on the same texts.
Axes: u distinct texts, p examples of s sides, e width of what is computed of a text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.given_texts import require_no_table
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.head import encode_with_head
from permafrost.stages.encoder.predicted import Predicted, PredictedClasses, PredictedScores
from permafrost.stages.encoder.vectors import (
    HeadVectors,
    LatentVectors,
    MethodVectors,
    OnLatents,
    TextVectors,
)
from permafrost.stages.fit.predictions import Predictions
from permafrost.stages.fit.trained import LoadedHead
from permafrost.stages.freeze.fit_pairs import predict as predict_pairs
from permafrost.stages.linear.model import LinearModel
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted


@runtime_checkable
class Answers(TextVectors, Protocol):
    """A trained head that answers: `of` and `joined` give what is computed of each text."""

    @property
    def task(self) -> TaskKind:
        """The kind of corpus that it was trained on."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of the corpus; empty for graded pairs."""
        ...

    def answer(
        self, encoded: Float32[np.ndarray, "u e"], sides: Int64[np.ndarray, "s p"]
    ) -> Predicted:
        """Answers to the examples whose texts are the rows `sides` of `encoded`."""
        ...


@dataclass(frozen=True)
class HeadAnswers(HeadVectors):
    """Of a head on the tokens of one array: logits of single texts, vectors of those of pairs."""

    @property
    def task(self) -> TaskKind:
        """As the head says."""
        return self.head.facts.task

    @property
    def class_names(self) -> tuple[str, ...]:
        """As the head says."""
        return self.head.label_names

    @property
    def d_out(self) -> int:
        """Width of what is computed of a text."""
        return len(self.class_names) if self.task == "classification" else super().d_out

    def of(self, features: Features, progress: Progress) -> Vectors:
        """What the head's predictions are made of."""
        return encode_with_head(self.head, features.reader(self.head.layer, "span"), progress)

    def answer(
        self, encoded: Float32[np.ndarray, "u e"], sides: Int64[np.ndarray, "s p"]
    ) -> Predicted:
        """By the layers that the task adds to the pooling."""
        found = self.head.model.predict(torch.from_numpy(encoded), sides)
        if self.class_names:
            return classes_of(found, self.class_names)
        return scores_of(found.values, self.head.facts.label_range)


@dataclass(frozen=True, kw_only=True)
class LatentAnswers(OnLatents):
    """Of any head on the latents of every layer, which are what is computed of a text."""

    d_model: int
    """Width of each layer's."""

    @property
    def task(self) -> TaskKind:
        """Graded pairs."""
        return "similarity"

    @property
    def class_names(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def d_out(self) -> int:
        """Width of all latents of a text, side by side."""
        return len(self.arrays) * self.d_model

    def from_latents(self, latents: Float32[np.ndarray, "n l d"]) -> Vectors:
        """The latents, side by side."""
        return latents.reshape(len(latents), -1)

    def answer(
        self, encoded: Float32[np.ndarray, "u e"], sides: Int64[np.ndarray, "s p"]
    ) -> Predicted:
        """The similarity of each pair."""
        latents = encoded.reshape(len(encoded), len(self.arrays), self.d_model)
        found = predict_pairs(self.head, latents, np.ascontiguousarray(sides.T))
        return scores_of(found.astype(np.float64), self.label_range)


@dataclass(frozen=True, kw_only=True)
class LinearAnswers(MethodVectors):
    """Of a linear classifier on vectors of a method without training."""

    model: LinearModel

    @property
    def task(self) -> TaskKind:
        """As the classifier says."""
        return self.model.task

    @property
    def class_names(self) -> tuple[str, ...]:
        """As the classifier says."""
        return self.model.label_names

    @property
    def n_parameters(self) -> int:
        """Of the classifier."""
        return self.model.n_parameters

    def answer(
        self, encoded: Float32[np.ndarray, "u e"], sides: Int64[np.ndarray, "s p"]
    ) -> Predicted:
        """By the classifier, on the vectors of each side."""
        vectors, model = [encoded[side] for side in sides], self.model
        found = Predictions(model.predict(*vectors), None, model.probabilities(*vectors))
        return classes_of(found, self.class_names)


def answers_of(vectors: TextVectors) -> Answers:
    """The answers of a trained head, given what makes its vectors.

    Raises:
        InputError: nothing was trained to answer.
    """
    if isinstance(vectors, HeadVectors):
        return head_answers(vectors.head)
    if isinstance(vectors, LatentVectors):
        head = vectors.head
        return LatentAnswers(
            head,
            vectors.arrays,
            vectors.label_range,
            config=vectors.config,
            d_model=head.encoders.d_model,
        )
    if isinstance(vectors, LinearAnswers):
        return vectors
    raise InputError(
        "a method without training has no classes and no scores to predict; use its vectors (encode), or "
        "load a trained head (fit/<key>)"
    )


def classes_known(vectors: HeadVectors | LinearAnswers) -> tuple[TaskKind, tuple[str, ...]]:
    """The kind of corpus that it was trained on, and the names of its classes, if it has any."""
    if isinstance(vectors, LinearAnswers):
        return vectors.task, vectors.class_names
    return vectors.head.facts.task, vectors.head.label_names


def head_answers(head: LoadedHead) -> HeadAnswers:
    """The answers of a head.

    Raises:
        InputError: it was trained on pairs without labels.
    """
    if head.facts.task == "unlabelled":
        raise InputError(
            f"the head was trained with the loss {quoted(head.config.loss.kind)} on pairs without labels, so "
            "it has no classes and no scores to predict; use its vectors (permafrost embed, or encode in "
            "Python), whose likeness is what was trained"
        )
    return HeadAnswers(head)


def classes_of(found: Predictions, names: tuple[str, ...]) -> PredictedClasses:
    """Answers that are classes, with their names."""
    shares = found.probabilities
    return PredictedClasses(
        names,
        found.values.astype(np.int64),
        None if shares is None else shares.astype(np.float32),
    )


def scores_of(similarities: np.ndarray, label_range: tuple[float, float]) -> PredictedScores:
    """Answers that are scores, in the units of the labels."""
    low, high = label_range
    return PredictedScores(low + (high - low) * similarities, similarities)


def answered(
    answers: Answers,
    encode: Callable[[list[str]], Vectors],
    texts: Iterable[str],
    text_pairs: Iterable[str] | None,
) -> Predicted:
    """Answers to texts or pairs.

    Args:
        answers: of a head.
        encode: computes what `answers` are made of, of distinct texts.
        texts: of single texts, or the first of each pair.
        text_pairs: the second of each pair.

    Raises:
        InputError: see `require_sides`.
    """
    first, second = _listed(texts), None if text_pairs is None else _listed(text_pairs)
    require_sides(answers, first, second)
    both = [*first, *(second or ())]
    if not both:
        return _nothing(answers)
    numbers = {text: i for i, text in enumerate(dict.fromkeys(both))}
    sides = np.array([numbers[text] for text in both]).reshape(-1, len(first))
    return answers.answer(encode(list(numbers)), sides)


def _listed(texts: Iterable[str]) -> Sequence[str]:
    """Texts that can be read more than once, which those of a generator cannot; a single text as it is, to be
    refused."""
    require_no_table(texts)
    return texts if isinstance(texts, str) else list(texts)


def _nothing(answers: Answers) -> Predicted:
    names = answers.class_names
    if names:
        shares = np.empty((0, len(names)), np.float32)
        return PredictedClasses(names, np.empty(0, np.int64), shares)
    return PredictedScores(np.empty(0), np.empty(0))


def require_sides(answers: Answers, texts: Sequence[str], text_pairs: Sequence[str] | None) -> None:
    """Check that there is one text per example for a head on single texts, and two for one on pairs.

    Raises:
        InputError: there is not, or a text is blank; the message has its number.
    """
    for name, side in (("texts", texts), ("text_pairs", text_pairs)):
        if isinstance(side, str):
            raise InputError(
                f"{name} is the text {quoted(side)} where a list of texts belongs; write [text]"
            )
    if answers.task == "classification" and text_pairs is not None:
        raise InputError(
            f"the head was trained on single texts (a corpus of kind {quoted(answers.task)}), and a second "
            "text of each was given; leave the second texts out (text_pairs, or --text-pair)"
        )
    if answers.task != "classification" and text_pairs is None:
        raise InputError(
            f"the head was trained on pairs of texts (a corpus of kind {quoted(answers.task)}), and only one "
            "text of each was given; give the second ones too (text_pairs in Python, --text-pair COLUMN on "
            "the command line)"
        )
    if text_pairs is not None and len(texts) != len(text_pairs):
        raise InputError(
            f"there are {len(texts)} texts and {len(text_pairs)} text_pairs; give each text its second one"
        )
    for name, side in (("texts", texts), ("text_pairs", text_pairs or ())):
        require_strings(name, side)
        for at, text in enumerate(side):
            if not text.strip():
                raise InputError(f"{name}[{at}] is blank; leave it out, or give a text")


def require_strings(name: str, texts: Sequence[object]) -> None:
    """Check that each of a list of texts is one.

    Raises:
        InputError: one is not; the message has its number.
    """
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"{name}[{at}] is {quoted(text)} and no text; give a list of strings (of pairs, the second "
                "texts go into a list of their own, text_pairs)"
            )
