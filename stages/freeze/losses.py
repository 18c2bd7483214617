"""What training on graded pairs makes small.

Source: FREEZE!, 4.1.1. Axes: n pairs of a batch.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from jaxtyping import Float
from torch import Tensor

from permafrost.stages.kinds import Category, Kind
from permafrost.storage.errors import InputError

VARIANCE_FLOOR = 1e-8
"""A variance counts as at least this: residuals of a ten-thousandth, far below what labels resolve."""


class PairLoss(Kind, ABC):
    """One entry `loss` of a method of kind `layers`."""

    @abstractmethod
    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of similarities between 0 and 1, and what they should be."""


PAIR_LOSSES = Category("loss of a head on all layers", PairLoss, "permafrost.stages.freeze")
PairLossConfig = Annotated[PairLoss, PAIR_LOSSES.field_or_name()]
"""Any such loss, by its `kind`; one without settings may be its name alone."""


class Mse(PairLoss):
    """Mean squared residual."""

    kind: Literal["mse"] = "mse"

    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Of a batch."""
        return (predicted - gold).square().mean()


class LogVariance(PairLoss):
    """Logarithm of the residuals' unbiased variance, blind to a constant added to every prediction.

    We differ: the variance has a floor (`VARIANCE_FLOOR`), below which there is no gradient, so that a
    perfect fit is a small number instead of minus infinity.
    """

    kind: Literal["log_variance"] = "log_variance"

    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Of a batch.

        Raises:
            InputError: fewer than two pairs, which have no variance.
        """
        if len(predicted) < 2:
            raise InputError(
                f"log_variance compares residuals, but the batch has {len(predicted)} pairs; give at least "
                "2, or use the loss mse"
            )
        return (predicted - gold).var(correction=1).clamp_min(VARIANCE_FLOOR).log()
