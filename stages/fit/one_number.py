"""What a loss gives for a batch: one number with a gradient, which a plug-in's need not be."""

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.kinds import Kind
from permafrost.storage.errors import InputError


def one_number(loss: Kind, found: object) -> Float[Tensor, ""]:
    """What `loss.of` gave; numbers of examples would be trained on as independent parts, by their sum.

    Raises:
        InputError: it is no tensor, has another shape, or has no gradient where gradients are computed.
    """
    who = f"{type(loss).__name__}.of"
    if not isinstance(found, Tensor):
        raise InputError(
            f"{who} gave {type(found).__name__}; return a tensor of one number, which the head is trained by"
        )
    if found.ndim:
        raise InputError(
            f"{who} gave shape {list(found.shape)}; return one number, such as .mean()"
        )
    if torch.is_grad_enabled() and not found.requires_grad:
        raise InputError(
            f"{who} gave a number without a gradient, so nothing could be learnt; compute it from what it is "
            "given in torch, without detach() and no_grad()"
        )
    return found
