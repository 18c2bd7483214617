"""The learned readout as modules: a two-layer scorer, a softmax over tokens, a weighted sum; see `scorer`.

Axes: t tokens of all texts, n texts, d input width, s hidden width of the scorer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from permafrost.stages.heads.initialise import linear
from permafrost.stages.heads.pooling import Pooling
from permafrost.stages.heads.ragged_sums import attend

MOST = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Maximum tokens of a chunk; intermediate results exist for one chunk at a time."""


def _chunks(tokens: Tensor) -> Iterator[slice]:
    """All tokens, in order, at most `MOST` at a time."""
    most = MOST[tokens.device.type]
    return (slice(at, at + most) for at in range(0, len(tokens), most))


def _joined(parts: Sequence[Float[Tensor, "t _"]], chunk: slice) -> Float[Tensor, "u k"]:
    """A chunk of the tokens, with their blocks of columns concatenated."""
    return parts[0][chunk] if len(parts) == 1 else torch.cat([part[chunk] for part in parts], dim=1)


class _Score(torch.autograd.Function):
    """tanh(parts W' + b) v, computed in chunks of tokens.

    Hand-written because a training step spends most of its time here: the gradient of the hidden layer exists
    for one chunk at a time instead of three times for all tokens, and no gradient is computed for parts that
    need none.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, second: Tensor, *parts: Tensor) -> Tensor:
        turned = weight.t()
        hidden: list[Tensor] = []
        scores: list[Tensor] = []
        for chunk in _chunks(parts[0]):
            hidden.append(torch.addmm(bias, _joined(parts, chunk), turned).tanh_())
            scores.append(hidden[-1] @ second)
        ctx.n_parts = len(parts)
        ctx.save_for_backward(weight, second, *parts, *hidden)
        return torch.cat(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] # torch types it for any signature
        weight, second, *rest = ctx.saved_tensors
        parts, hidden = rest[: ctx.n_parts], rest[ctx.n_parts :]
        # With g the gradient of a score, that of the hidden layer is g (1 - hidden^2) v. The factor v scales
        # the rows of the weight, so it is applied once per batch instead of once per token.
        to_weight = torch.zeros_like(weight)
        to_bias, to_second = torch.zeros_like(second), torch.zeros_like(second)
        wanted = [k for k, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        to_parts = {k: torch.empty_like(parts[k]) for k in wanted}
        columns = (weight * second[:, None]).split([part.shape[1] for part in parts], dim=1)
        scaled = torch.cat([columns[k] for k in wanted], dim=1) if wanted else None
        one = weight.new_ones(())
        for chunk, activations in zip(_chunks(grad), hidden, strict=True):
            change = torch.addcmul(one, activations, activations, value=-1).mul_(grad[chunk, None])
            to_second.addmv_(activations.t(), grad[chunk])
            to_bias += change.sum(dim=0)
            to_weight.addmm_(change.t(), _joined(parts, chunk))
            if scaled is not None:
                to_joined = change @ scaled
                widths = [parts[k].shape[1] for k in wanted]
                for k, part in zip(wanted, to_joined.split(widths, dim=1), strict=True):
                    to_parts[k][chunk] = part
        to_weight *= second[:, None]
        return to_weight, to_bias.mul_(second), to_second, *map(to_parts.get, range(len(parts)))


class Readout(nn.Module):
    """score = v . tanh(W u + b) + b', weights = softmax of the scores in a text, z = sum of weight * u.

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
            parts: blocks of columns of u, in order; separate because the first block is the backbone's
                output, which needs no gradient, and concatenating would copy it.
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
