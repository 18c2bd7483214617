"""Losses for graded pairs.

Source: FREEZE!, 4.1.1. Axes: n pairs of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from permafrost.stages.kinds import Category, Kind
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

VARIANCE_FLOOR = 1e-8
"""Smallest variance that counts: residuals of 1e-4, far below the resolution of labels."""


class PairLoss(Kind, ABC):
    """The field `loss` of a method of kind `layers`."""

    @abstractmethod
    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of predicted similarities, given the gold ones, both in 0..1."""


PAIR_LOSSES = Category("loss of a head on all layers", PairLoss, "permafrost.stages.freeze")
PairLossConfig = Annotated[PairLoss, PAIR_LOSSES.field_or_name()]
"""Any such loss, by its `kind`; one without settings may be its name alone."""


class Mse(PairLoss):
    """Mean squared residual."""

    kind: Literal["mse"] = "mse"

    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of a batch."""
        return (predicted - gold).square().mean()


class LogVariance(PairLoss):
    """Logarithm of the residuals' unbiased variance; a constant added to every prediction does not change it.

    We differ: the variance is clamped at `VARIANCE_FLOOR`, below which there is no gradient, so that a
    perfect fit gives a finite number instead of minus infinity.
    """

    kind: Literal["log_variance"] = "log_variance"

    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of a batch.

        Raises:
            InputError: there are fewer than two pairs, so no variance.
        """
        if len(predicted) < 2:
            raise InputError(
                f"log_variance compares residuals, but the batch has {len(predicted)} pairs; give at least "
                "2, or use the loss mse"
            )
        return (predicted - gold).var(correction=1).clamp_min(VARIANCE_FLOOR).log()


class Variance(PairLoss):
    """The residuals' unbiased variance, of which `log_variance` takes the logarithm.

    FREEZE!, 4.1.1, compares the two.
    """

    kind: Literal["variance"] = "variance"

    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of a batch of at least two pairs."""
        return (predicted - gold).var(correction=1)


class L1(PairLoss):
    """Mean absolute residual; the released notebook of the unified embedding (FREEZE!, 4.3) has it."""

    kind: Literal["l1"] = "l1"

    def of(self, predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """The loss of a batch."""
        return (predicted - gold).abs().mean()
