"""The base classes of losses of graph-text models, by what they read.

A new task loss is a subclass of `ScoreLoss` or `VectorLoss`. GT2VEC's are sums over the batch (equations 5,
7, 8 and 9), so that lambda weighs one sum against another (equation 6); `reduction: mean` divides by the
number of terms. Axes: c cases, i items (a text with its graph), p pairs, n rows, d width of a vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from permafrost.stages.kinds import Category, Kind
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

Reduction = Literal["sum", "mean"]


def reduced(terms: Float[Tensor, " n"], reduction: Reduction) -> Float[Tensor, ""]:
    """Sum or mean; 0 if there are no terms."""
    total = terms.sum()
    return total / max(len(terms), 1) if reduction == "mean" else total


class GraphTextLoss(Kind, ABC):
    """The field `loss` of a graph-text method: what the task wants of embeddings, or of their scores."""

    task_kinds: ClassVar[tuple[str, ...]]
    """Kinds of task that it is made for."""
    default_of: ClassVar[tuple[str, ...]] = ()
    """Kinds of task that use it if no loss is named."""
    least_batch: ClassVar[int] = 1
    """Minimum number of cases in a batch."""
    n_classes: ClassVar[int | None] = None
    """How many classes a classification must have; None for any number."""

    @property
    def is_sum(self) -> bool:
        """Whether it grows with the batch, so that what is noted of it is divided by the number of cases."""
        return False


GRAPH_TEXT_LOSSES = Category("graph-text loss", GraphTextLoss, "permafrost.stages.finetune.losses")
GraphTextLossConfig = Annotated[GraphTextLoss, GRAPH_TEXT_LOSSES.field()]
"""Any loss of a graph-text task, by its `kind`."""


class ScoreLoss(GraphTextLoss):
    """A loss of scores, of which an item has one."""

    @abstractmethod
    def of(
        self,
        scores: Float[Tensor, " i"],
        offsets: Int[Tensor, " c_plus_1"],
        labels: Int[Tensor, " c"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch.

        Args:
            scores: of all items, those of a case one after the other.
            offsets: where cases start among them.
            labels: of the cases.
        """


class VectorLoss(GraphTextLoss):
    """A loss of pairs of embeddings, with the documents of the batch as each other's negatives."""

    @property
    def pairs_across(self) -> bool:
        """Whether queries of one branch are paired with documents of the other."""
        return False

    @property
    def maps_embeddings(self) -> bool:
        """Whether a linear map of the embeddings is trained, and what it gives is compared."""
        return False

    @abstractmethod
    def of(
        self,
        queries: Float[Tensor, "p d"],
        documents: Float[Tensor, "p d"],
        relevant: Bool[Tensor, "p p"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch.

        Args:
            queries: of the pairs.
            documents: of the pairs.
            relevant: which documents are relevant to which queries, its own to each and, by other pairs of
                train, in the batch or not, others.
        """


class Alignment(Kind, ABC):
    """The field `alignment` of a graph-text model: what holds two embeddings of the same item together."""

    @abstractmethod
    def of(self, anchors: Float[Tensor, "n d"], keys: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
        """The loss of a batch, before lambda.

        Args:
            anchors: embeddings of graph and text (z_orig).
            keys: embeddings of the graph's description and text (z_new), in the same order.
        """


ALIGNMENTS = Category("alignment loss", Alignment, "permafrost.stages.finetune.losses")
AlignmentConfig = Annotated[Alignment, ALIGNMENTS.field()]
"""Any alignment loss, by its `kind`."""


def default_graph_text_loss(task: str) -> GraphTextLoss:
    """The loss of a kind of task with graphs, if none is named.

    Raises:
        InputError: no loss is made for this kind of task.
    """
    for name, kind in GRAPH_TEXT_LOSSES.kinds().items():
        if task in kind.default_of:
            return GRAPH_TEXT_LOSSES.validate({"kind": name})
    known = sorted(t for kind in GRAPH_TEXT_LOSSES.kinds().values() for t in kind.default_of)
    raise InputError(
        f"no loss of graph-text models is made for a task of kind {quoted(task)}; they are made for "
        f"{', '.join(known)}"
    )
