"""Making a library's layers draw random numbers from our generator.

Layers of torch and torch-geometric take no generator: initial weights and dropout come from the global one,
which all threads share, so parallel fits would change each other's numbers. Inside `DirectedDraws` every
function that draws is passed the given generator. A torch function mode belongs to its thread, so no lock is
held while a head trains.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from permafrost.storage.errors import InputError

_TAKE_A_GENERATOR = frozenset(
    {getattr(Tensor, name) for name in ("bernoulli", "multinomial")}
    | {
        getattr(Tensor, f"{name}_")
        for name in (
            [
                "bernoulli",
                "cauchy",
                "exponential",
                "geometric",
                "log_normal",
                "normal",
                "random",
                "uniform",
            ]
        )
    }
    | {
        getattr(torch, name)
        for name in ["bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"]
    }
    # Functions of `init` that a mode sees as a whole rather than through the draw inside.
    | {nn.init.kaiming_normal_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_}
)

_DRAW_INSIDE = frozenset(
    {
        torch.rand_like,
        torch.randn_like,
        torch.randint_like,
        functional.alpha_dropout,
        functional.feature_alpha_dropout,
        functional.dropout1d,
        functional.dropout2d,
        functional.dropout3d,
        functional.gumbel_softmax,
        functional.rrelu,
    }
)
"""Functions that always draw from the global generator."""


class DirectedDraws(TorchFunctionMode):
    """While active, this thread draws from `generator` and leaves the global one alone.

    Raises:
        InputError: a function draws but takes no generator.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func`, with the generator if it draws."""
        kwargs = kwargs or {}
        if func is functional.dropout:
            return _dropout(*args, **kwargs, generator=self.generator)
        if func in _TAKE_A_GENERATOR and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self.generator}
        elif func in _DRAW_INSIDE:
            raise InputError(
                f"{func.__name__} draws from the generator that all threads share, so a run with the same "
                "seed would give other numbers; use a layer without it"
            )
        return func(*args, **kwargs)


def _dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Like `functional.dropout`, with its parameters and a generator."""
    if not training or p == 0:
        return input
    kept = torch.empty_like(input, requires_grad=False).bernoulli_(1 - p, generator=generator)
    kept = kept / (1 - p) if p < 1 else kept
    return input.mul_(kept) if inplace else input * kept


def require_directed(layer: nn.Module, name: str) -> None:
    """Check that a layer does not draw inside a kernel, where a mode cannot see it.

    Args:
        layer: including all submodules.
        name: of its class, for the message.

    Raises:
        InputError: dropout in an LSTM, a GRU or torch's multi-head attention.
    """
    for part in layer.modules():
        if isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0:
            raise InputError(
                f"{name} has dropout {part.dropout} inside torch's {type(part).__name__}, which draws from "
                "the generator that all threads share, so a run with the same seed would give other numbers; "
                "leave this dropout at 0"
            )
