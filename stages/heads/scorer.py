"""The learned readout: a two-layer scorer, a softmax over tokens, a weighted sum.

Source: GLOT's readout (equation 4) and its "AdaPool" baseline, as released. The AdaPool of
Brothers (cross-attention with the mean token as query) is another method.
Axes: t tokens of all texts, n texts, d input width, s hidden width of the scorer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from stages.heads.initialise import linear
from stages.heads.pooling import Pooling
from stages.heads.ragged_sums import attend

SCORED = {"cpu": 1 << 18, "cuda": 1 << 28}
"""Hidden numbers worked on at a time: on a CPU what stays in the level-2 cache between steps."""


def _chunks(hidden: Tensor) -> Iterator[slice]:
    step = max(1, SCORED[hidden.device.type] // hidden.shape[1])
    return (slice(at, at + step) for at in range(0, len(hidden), step))


class _Score(torch.autograd.Function):
    """tanh(parts W' + b) v, tokens in chunks.

    Written out because this is where a training step spends its time: the gradient of the hidden
    layer exists one chunk at a time instead of three times over all tokens, and no gradient is made
    for parts that need none.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, second: Tensor, *parts: Tensor) -> Tensor:
        widths = [part.shape[1] for part in parts]
        # Contiguous: a row length of a power of two would map a column to one cache set.
        turned = [columns.contiguous().t() for columns in weight.split(widths, dim=1)]
        hidden = parts[0].new_empty(len(parts[0]), len(weight))
        for chunk in _chunks(hidden):
            torch.mm(parts[0][chunk], turned[0], out=hidden[chunk])
            for part, columns in zip(parts[1:], turned[1:], strict=True):
                hidden[chunk].addmm_(part[chunk], columns)
            hidden[chunk].add_(bias).tanh_()
        ctx.save_for_backward(weight, second, hidden, *parts)
        return hidden @ second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        weight, second, hidden, *parts = ctx.saved_tensors
        widths = [part.shape[1] for part in parts]
        # With g the gradient of a score, that of the hidden layer is g (1 - hidden^2) v. The factor v
        # is a scaling of the weight's rows, applied once per batch instead of once per token.
        to_weight, to_bias = torch.zeros_like(weight), torch.zeros_like(second)
        scaled = (weight * second[:, None]).split(widths, dim=1)
        to_parts = [
            torch.empty_like(part) if needed else None
            for part, needed in zip(parts, ctx.needs_input_grad[3:], strict=True)
        ]
        one = hidden.new_ones(())
        for chunk in _chunks(hidden):
            change = torch.addcmul(one, hidden[chunk], hidden[chunk], value=-1)
            change *= grad[chunk, None]
            to_bias += change.sum(dim=0)
            for k, columns in enumerate(to_weight.split(widths, dim=1)):
                columns.addmm_(change.t(), parts[k][chunk])
                to_part = to_parts[k]
                if to_part is not None:
                    torch.mm(change, scaled[k], out=to_part[chunk])
        to_weight *= second[:, None]
        return to_weight, to_bias.mul_(second), grad @ hidden, *to_parts


class Readout(nn.Module):
    """score = v . tanh(W u + b) + b', weights = softmax of the scores inside a text, z = sum of weight * u.

    Has d * s + 2 s + 1 parameters; b' cancels in the softmax and is kept because the papers count it.
    """

    def __init__(self, d_in: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = linear(d_in, hidden, generator)
        self.second = linear(hidden, 1, generator)

    def forward(
        self, parts: Sequence[Float[Tensor, "t _"]], offsets: Int[Tensor, " n_plus_1"]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, " t"]]:
        """Pooled vectors and token weights.

        Args:
            parts: blocks of columns of u, in order. Kept apart because the first block is the
                backbone's output, which needs no gradient, and joining would copy it.
            offsets: where texts start.
        """
        scores: Tensor = _Score.apply(  # pyright: ignore[reportAssignmentType] # apply is untyped
            self.first.weight, self.first.bias, self.second.weight[0], *parts
        )
        return attend(scores + self.second.bias, offsets, parts)


class ScorerPooling(Pooling):
    """A weighted sum of the tokens themselves (GLOT's AdaPool)."""

    def __init__(self, d_in: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.d_out = d_in
        self.readout = Readout(d_in, hidden, generator)

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        return self.readout([tokens], offsets)[0]

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """The softmax weights."""
        return self.readout([tokens], offsets)[1]
