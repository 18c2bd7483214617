"""What training on graded pairs makes small.

Source: FREEZE!, 4.1.1.
"""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from permafrost.storage.errors import InputError

Loss = Literal["mse", "log_variance"]

VARIANCE_FLOOR = 1e-8
"""A variance counts as at least this: residuals of a ten-thousandth, far below what labels resolve."""


def mse(predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean squared residual."""
    return (predicted - gold).square().mean()


def log_variance(predicted: Float[Tensor, " n"], gold: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Logarithm of the residuals' unbiased variance, blind to a constant added to every prediction.

    We differ: the variance has a floor (`VARIANCE_FLOOR`), below which there is no gradient, so that a
    perfect fit is a small number instead of minus infinity.

    Raises:
        InputError: fewer than two pairs, which have no variance.
    """
    if len(predicted) < 2:
        raise InputError(
            f"log_variance compares residuals, but the batch has {len(predicted)} pairs; give at least 2, "
            "or use the loss mse"
        )
    return (predicted - gold).var(correction=1).clamp_min(VARIANCE_FLOOR).log()


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {"mse": mse, "log_variance": log_variance}
