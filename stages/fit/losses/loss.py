"""What every loss is: a number to be made smaller, from what a model of its kinds of task puts out.

A new loss is a class below `ClassLoss`, `GradedLoss` or `PartnerLoss`.
Axes: n examples of a batch, c classes, p pairs, m hard negatives of all of them, d width of a vector.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor

from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.kinds import Category, Kind

VectorSimilarity = Literal["dot", "cosine"]


class Loss(Kind, ABC):
    """One entry `loss` of an experiment."""

    task_kinds: ClassVar[tuple[TaskKind, ...]]
    """Those that it is made for."""
    default_of: ClassVar[tuple[TaskKind, ...]] = ()
    """Kinds of task that are trained with it where no loss is named."""
    least_batch: ClassVar[int] = 1
    """Examples that a batch has to have."""

    @property
    def compared_by(self) -> VectorSimilarity:
        """What trained vectors are compared by: on dev and test where partners are ranked, and by users."""
        return "cosine"

    @property
    def adds_negatives(self) -> bool:
        """Whether hard negatives of the corpus take part."""
        return False


LOSSES = Category("loss", Loss, "permafrost.stages.fit.losses")
LossConfig = Annotated[Loss, LOSSES.field()]
"""Any loss, by its `kind`."""


def default_loss(task: TaskKind) -> Loss:
    """The loss of a kind of task where none is named."""
    name = next(name for name, kind in LOSSES.kinds().items() if task in kind.default_of)
    return LOSSES.validate({"kind": name})


class ClassLoss(Loss):
    """Of classes of single texts or of pairs."""

    task_kinds: ClassVar[tuple[TaskKind, ...]] = ("classification", "pair_classification")

    @abstractmethod
    def of(self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of a batch."""


class GradedLoss(Loss):
    """Of pairs with grades: what the cosine of two projected vectors predicts."""

    task_kinds: ClassVar[tuple[TaskKind, ...]] = ("similarity",)

    @abstractmethod
    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        wanted: Float[Tensor, " p"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; `wanted` are the grades, 0 the lowest of train and 1 the highest."""


class PartnerLoss(Loss):
    """Of pairs without labels: the second text is to be found from the first."""

    task_kinds: ClassVar[tuple[TaskKind, ...]] = ("unlabelled",)

    @abstractmethod
    def of(
        self,
        first: Float[Tensor, "p d"],
        second: Float[Tensor, "p d"],
        negatives: Float[Tensor, "m d"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; without hard negatives m is 0."""
