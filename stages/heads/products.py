"""Products of float32 matrices on a CPU, by oneDNN instead of the BLAS that torch is linked to.

MKL keeps to AVX2 on CPUs of other makers; oneDNN uses what there is (`benchmarks.token_graph --only
products` prints both speeds). For other dtypes and devices these are torch's own products.
Axes: t tokens, b texts, m and n rows and columns of a product, k what is summed over.
Memory: the result, copies of `MOST` tokens, and for each size of matrix 5 to 10 MiB of compiled kernels.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST = {"cpu": 1 << 10, "cuda": 1 << 16}
STEP = 64
"""Tokens go in pieces of at most `MOST`, filled with zeros up to multiples of `STEP`: oneDNN compiles a
kernel for every shape, which takes about a millisecond and up to 1 MiB, and keeps a thousand of them."""

LARGE = 1 << 20
"""Multiplications from which products by oneDNN one after the other are faster than a batch by the BLAS."""


@cache
def _has_onednn() -> bool:
    # Builds of torch for some processors have oneDNN without this operator.
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(matrix: Tensor) -> bool:
    return matrix.dtype == torch.float32 and matrix.device.type == "cpu" and _has_onednn()


def _onednn(left: Tensor, right: Tensor, bias: Tensor | None, then: str) -> Tensor:
    # What torch.compile calls for a linear layer; the operands may be transposed views.
    return torch.ops.mkldnn._linear_pointwise.default(left, right.t(), bias, then, [], "")


def product(left: Float[Tensor, "m k"], right: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """left @ right, for shapes that come again; no gradient."""
    return _onednn(left, right, None, "none") if _by_onednn(left) else left @ right


def tanh_product(
    left: Float[Tensor, "m k"], right: Float[Tensor, "k n"], bias: Float[Tensor, " n"]
) -> Float[Tensor, "m n"]:
    """tanh(left @ right + bias), for shapes that come again; no gradient."""
    if _by_onednn(left):
        return _onednn(left, right, bias, "tanh")
    return torch.addmm(bias, left, right).tanh_()


def products(left: Float[Tensor, "b m k"], right: Float[Tensor, "b k n"]) -> Float[Tensor, "b m n"]:
    """left @ right for every text, for shapes that come again; no gradient."""
    n_texts, m, k = left.shape
    if m * k * right.shape[2] < LARGE or not _by_onednn(left):
        return torch.bmm(left, right)
    if n_texts == 1:
        return product(left[0], right[0])[None]
    return torch.stack([product(*pair) for pair in zip(left, right, strict=True)])


def pieces(tokens: Tensor) -> Iterator[slice]:
    """All tokens, in order, at most `MOST` at a time."""
    most = MOST[tokens.device.type]
    return (slice(at, at + most) for at in range(0, len(tokens), most))


def filled(parts: Sequence[Float[Tensor, "t _"]], piece: slice) -> Float[Tensor, "u k"]:
    """A piece of the tokens, their blocks of columns side by side, and rows of zeros below."""
    mine = [part[piece] for part in parts]
    n_tokens = len(mine[0])
    missing = -n_tokens % STEP
    if len(mine) == 1 and not missing:
        return mine[0]
    out = mine[0].new_empty(n_tokens + missing, sum(part.shape[1] for part in mine))
    torch.cat(mine, dim=1, out=out[:n_tokens])
    out[n_tokens:] = 0
    return out


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        return _joined(
            product(filled([tokens], piece), weight.t())[: len(tokens[piece])]
            for piece in pieces(tokens)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        tokens, weight = ctx.saved_tensors
        to_weight = torch.zeros_like(weight)
        to_tokens: list[Tensor] = []
        for piece in pieces(tokens):
            arriving = filled([grad], piece)
            to_weight += product(arriving.t(), filled([tokens], piece))
            if ctx.needs_input_grad[0]:
                to_tokens.append(product(arriving, weight)[: len(tokens[piece])])
        return _joined(to_tokens) if to_tokens else None, to_weight


def _joined(parts: Iterable[Tensor]) -> Tensor:
    parts = list(parts)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def linear_map(tokens: Float[Tensor, "t k"], weight: Float[Tensor, "n k"]) -> Float[Tensor, "t n"]:
    """tokens @ weight', with gradients, for any number of tokens."""
    out: Tensor = _LinearMap.apply(tokens, weight)  # pyright: ignore[reportAssignmentType] # apply is untyped
    return out
