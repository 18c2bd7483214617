"""A pooling with the layers that its kind of task adds: one model per kind of task.

Source: GLOT, section 4.1 and appendix B.3, as in its released code: Linear(D, C) on the vector of a single
text, Linear(2 D, C) on the concatenated vectors of a pair with classes, and for graded pairs the cosine
after a Linear(D, D), which every pooling gets, those without parameters too. Nothing is normalised, and
pairs without labels add no layer.

We differ in that both sides of a batch, and its hard negatives, are pooled together, which matters only to a
head with batch normalisation: its statistics are taken over all of them.
Axes: t tokens of all texts, n texts, e width of an encoding, u distinct texts, p examples of s sides.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.losses.loss import ClassLoss, GradedLoss, PartnerLoss
from permafrost.stages.fit.one_number import one_number
from permafrost.stages.fit.predictions import Predictions
from permafrost.stages.fit.ranks import partner_ranks
from permafrost.stages.heads.initialise import linear
from permafrost.stages.heads.pooling import Classifier, Pooling, build_pooling, pool

_PAIRS_AT_A_TIME = 1024


@dataclass(frozen=True)
class TaskFacts:
    """What a model needs to know about its corpus."""

    task: TaskKind
    label_names: tuple[str, ...] = ()
    """Names of the classes; empty if labels are not classes."""
    label_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score of train, which become 0 and 1; for graded pairs only."""


class TaskModel(nn.Module, ABC):
    """A pooling with the parameters that its task adds."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n e"]:
        """The encoding of each text: all that the loss and the predictions need."""
        return self.vectors(tokens, offsets)

    def vectors(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text, for use outside the task."""
        return self.pooled(tokens, offsets)

    def pooled(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """What the pooling gives.

        Raises:
            InputError: see `pool`.
        """
        return pool(self.pooling, tokens, offsets)

    @abstractmethod
    def loss(
        self, encoded: Float[Tensor, "n e"], labels: Int[Tensor, " p"] | Float[Tensor, " p"]
    ) -> Float[Tensor, ""]:
        """Loss of a batch. For pairs, `encoded` holds the first texts, then the second ones; for pairs
        without labels any number of hard negatives follow."""

    @abstractmethod
    def predict(
        self, encoded: Float[Tensor, "u e"], sides: Int64[np.ndarray, "s p"]
    ) -> Predictions:
        """Answers to the examples whose texts are the rows `sides` of `encoded`, which is on the CPU."""


class SingleClasses(TaskModel):
    """Classes of single texts; encodings are logits."""

    def __init__(
        self, pooling: Pooling, criterion: ClassLoss, n_classes: int, draw: torch.Generator
    ) -> None:
        super().__init__(pooling)
        self.criterion = criterion
        self.classifier = Classifier(pooling.d_out, n_classes, draw)

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n c"]:
        """Logits of each text."""
        return self.classifier(self.pooled(tokens, offsets))

    def loss(self, encoded: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """Loss of the logits."""
        return one_number(self.criterion, self.criterion.of(encoded, labels))

    def predict(
        self, encoded: Float[Tensor, "u c"], sides: Int64[np.ndarray, "1 p"]
    ) -> Predictions:
        """The most probable class."""
        return _most_probable(encoded[torch.from_numpy(sides[0])])


class PairClasses(TaskModel):
    """Classes of pairs: the classifier reads both vectors, concatenated."""

    def __init__(
        self, pooling: Pooling, criterion: ClassLoss, n_classes: int, draw: torch.Generator
    ) -> None:
        super().__init__(pooling)
        self.criterion = criterion
        self.classifier = Classifier(2 * pooling.d_out, n_classes, draw)

    def loss(self, encoded: Float[Tensor, "n e"], labels: Int[Tensor, " p"]) -> Float[Tensor, ""]:
        """Loss of the pairs' logits."""
        logits = self.classifier(torch.cat(encoded.chunk(2), 1))
        return one_number(self.criterion, self.criterion.of(logits, labels))

    @torch.no_grad()
    def predict(
        self, encoded: Float[Tensor, "u e"], sides: Int64[np.ndarray, "2 p"]
    ) -> Predictions:
        """The most probable class."""
        device = self.classifier.linear.weight.device
        parts: list[Tensor] = []
        for first, second in zip(
            *(torch.from_numpy(side).split(_PAIRS_AT_A_TIME) for side in sides), strict=True
        ):
            pairs = torch.cat([encoded[first], encoded[second]], dim=1)
            parts.append(self.classifier(pairs.to(device)).cpu())
        return _most_probable(torch.cat(parts))


class GradedPairs(TaskModel):
    """Graded pairs: the cosine of two projected vectors."""

    def __init__(
        self,
        pooling: Pooling,
        criterion: GradedLoss,
        label_range: tuple[float, float],
        draw: torch.Generator,
    ) -> None:
        super().__init__(pooling)
        self.criterion = criterion
        self.projection = linear(pooling.d_out, pooling.d_out, draw)
        self.label_range = label_range

    def vectors(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """Projected vectors; their cosine is the prediction."""
        return self.projection(self.pooled(tokens, offsets))

    def loss(self, encoded: Float[Tensor, "n e"], labels: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """Loss of both sides and the scaled labels."""
        low, high = self.label_range
        wanted = ((labels - low) / (high - low)).to(encoded.dtype)
        first, second = encoded.chunk(2)
        return one_number(self.criterion, self.criterion.of(first, second, wanted))

    def predict(
        self, encoded: Float[Tensor, "u e"], sides: Int64[np.ndarray, "2 p"]
    ) -> Predictions:
        """Cosines; 0 with a zero vector, exactly 1 for equal texts."""
        vectors_UE = encoded.double().numpy()
        parts: list[NDArray[np.float64]] = []
        for at in range(0, sides.shape[1], _PAIRS_AT_A_TIME):
            a_PE, b_PE = (vectors_UE[side] for side in sides[:, at : at + _PAIRS_AT_A_TIME])
            aa, bb, ab = (
                np.einsum("pe,pe->p", x, y) for x, y in ((a_PE, a_PE), (b_PE, b_PE), (a_PE, b_PE))
            )
            # One square root of the product, so that a text with itself gives exactly 1.
            lengths = np.sqrt(aa * bb)
            parts.append(ab / np.where(lengths > 0, lengths, 1))
        return Predictions(np.concatenate(parts), None)


class InBatchContrastive(TaskModel):
    """Pairs without labels: given the first text, identify the second among the candidates."""

    def __init__(self, pooling: Pooling, criterion: PartnerLoss) -> None:
        super().__init__(pooling)
        self.criterion = criterion

    def loss(self, encoded: Float[Tensor, "n e"], labels: Int[Tensor, " p"]) -> Float[Tensor, ""]:
        """Loss of both sides and the hard negatives."""
        p = len(labels)
        loss = self.criterion.of(encoded[:p], encoded[p : 2 * p], encoded[2 * p :])
        return one_number(self.criterion, loss)

    def predict(
        self, encoded: Float[Tensor, "u e"], sides: Int64[np.ndarray, "2 p"]
    ) -> Predictions:
        """Ranks of the partners among all second texts."""
        ranks, similarities = partner_ranks(
            encoded.double().numpy(), sides, self.criterion.compared_by
        )
        return Predictions(ranks, similarities)


def _most_probable(logits: Tensor) -> Predictions:
    probabilities = logits.double().softmax(dim=1).numpy()
    scores = probabilities[:, 1] if logits.shape[1] == 2 else None
    return Predictions(logits.argmax(dim=1).numpy(), scores, probabilities)


def build_model(config: FitConfig, facts: TaskFacts, d_in: int) -> TaskModel:
    """A new model on the CPU; the same seed gives the same weights.

    Raises:
        InputError: the head's widths do not fit together, or it builds no pooling.
    """
    draw = torch.Generator().manual_seed(config.seed)
    pooling = build_pooling(config.head, d_in, draw)
    match facts.task, config.loss:
        case "classification", ClassLoss() as loss:
            return SingleClasses(pooling, loss, len(facts.label_names), draw)
        case "pair_classification", ClassLoss() as loss:
            return PairClasses(pooling, loss, len(facts.label_names), draw)
        case "similarity", GradedLoss() as loss:
            return GradedPairs(pooling, loss, facts.label_range, draw)
        case "unlabelled", PartnerLoss() as loss:
            return InBatchContrastive(pooling, loss)
    raise AssertionError(f"a loss {config.loss.kind} for {facts.task}, which the splits refuse")
