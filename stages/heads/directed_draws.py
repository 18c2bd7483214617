"""A library's random numbers, drawn from a generator of ours.

Layers of torch and of torch-geometric take no generator: initial weights and dropout come from the global
one, which all threads share, so fits side by side would change each other's numbers. Inside
`DirectedDraws` every function that draws is handed the given generator. A mode belongs to its thread, so no
lock is held while a head trains.
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
    # Of `init`, those that a mode sees as a whole instead of by the draw inside.
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
"""Draw from the global generator, whatever they are given."""


class DirectedDraws(TorchFunctionMode):
    """While it is active, this thread's draws come from `generator`, and the global one is left alone.

    Raises:
        InputError: from a function that draws and takes no generator.
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
        """Call `func`, directed if it draws."""
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
    """`functional.dropout`, whose parameters these are."""
    if not training or p == 0:
        return input
    kept = torch.empty_like(input, requires_grad=False).bernoulli_(1 - p, generator=generator)
    kept = kept / (1 - p) if p < 1 else kept
    return input.mul_(kept) if inplace else input * kept


def require_directed(layer: nn.Module, name: str) -> None:
    """Check that no draw of a layer happens where a mode does not see it: inside a kernel.

    Args:
        layer: with everything in it.
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
