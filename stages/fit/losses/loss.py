"""The base classes of losses, by the kinds of task they are made for.

A new loss is a subclass of `ClassLoss`, `GradedLoss` or `PartnerLoss`.
Axes: n examples of a batch, c classes, p pairs, m hard negatives of all pairs, d width of a vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.kinds import Category, Kind

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

VectorSimilarity = Literal["dot", "cosine"]


class Loss(Kind, ABC):
    """One entry `loss` of an experiment."""

    task_kinds: ClassVar[tuple[TaskKind, ...]]
    """Kinds of task that it is made for."""
    default_of: ClassVar[tuple[TaskKind, ...]] = ()
    """Kinds of task that use it if no loss is named."""
    least_batch: ClassVar[int] = 1
    """Minimum number of examples in a batch."""

    @property
    def compared_by(self) -> VectorSimilarity:
        """The similarity for which vectors are trained: it ranks partners on dev and test, and is what users
        should compare vectors by."""
        return "cosine"

    @property
    def adds_negatives(self) -> bool:
        """Whether it uses the hard negatives of the corpus."""
        return False


LOSSES = Category("loss", Loss, "permafrost.stages.fit.losses")
LossConfig = Annotated[Loss, LOSSES.field()]
"""Any loss, by its `kind`."""


def default_loss(task: TaskKind) -> Loss:
    """The loss of a kind of task if none is named."""
    name = next(name for name, kind in LOSSES.kinds().items() if task in kind.default_of)
    return LOSSES.validate({"kind": name})


class ClassLoss(Loss):
    """A loss for classes, of single texts or of pairs."""

    task_kinds: ClassVar[tuple[TaskKind, ...]] = ("classification", "pair_classification")

    @abstractmethod
    def of(self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of a batch."""


class GradedLoss(Loss):
    """A loss for graded pairs, whose grade the cosine of two projected vectors predicts."""

    task_kinds: ClassVar[tuple[TaskKind, ...]] = ("similarity",)

    @abstractmethod
    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        wanted: Float[Tensor, " p"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; `wanted` has the grades, scaled so that train's are in 0..1."""


class PartnerLoss(Loss):
    """A loss for pairs without labels: given the first text, identify the second."""

    task_kinds: ClassVar[tuple[TaskKind, ...]] = ("unlabelled",)

    @abstractmethod
    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        negatives: Float[Tensor, "m d"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; without hard negatives m is 0."""
