"""Pair heads: the pooled latents of two texts in, their similarity between 0 and 1 out.

Source: FREEZE!, 4.2. Axes: n pairs, l layers, d width of a latent, c width of a code, e of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.freeze.encoders import LayerAutoencoders, LayerEncoders
from permafrost.stages.heads.initialise import linear
from permafrost.storage.errors import InputError

_LEAST = 1e-24
"""Squared norms multiplied are not taken smaller, so that a vector of zeros has the cosine 0."""


def cosines(a: Float[Tensor, "*n c"], b: Float[Tensor, "*n c"]) -> Float[Tensor, "*n"]:
    """Cosine along the last axis; a vector with itself gives exactly 1.

    One root of the product, since the root of a rounded square is exact.
    """
    squares = a.square().sum(dim=-1) * b.square().sum(dim=-1)
    return (a * b).sum(dim=-1) / squares.clamp_min(_LEAST).sqrt()


class PairHead(nn.Module, ABC):
    """Similarity of two texts from their latents `[n_layers, d_model]` each."""

    @abstractmethod
    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""

    @abstractmethod
    def codes(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "n _"]]:
        """What is compared of each layer, in order."""

    @property
    def n_parameters(self) -> int:
        """Trainable numbers."""
        return sum(parameter.numel() for parameter in self.parameters())


class CosineMlp(PairHead):
    """Standardised cosines of the raw latents, ReLU, sigmoid.

    One mean and one deviation for all layers together. We differ: the notebook takes those of the very
    split that is scored, we take those of train.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, n_layers: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            linear(n_layers, hidden, generator), nn.ReLU(), linear(hidden, 1, generator)
        )
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))

    def standardise_by(self, cosines_NL: Float[Tensor, "n l"]) -> None:
        """Take the mean and the deviation of these cosines.

        Raises:
            InputError: they are all equal.
        """
        deviation = cosines_NL.double().std()
        if not deviation > 0:
            raise InputError(
                f"all {cosines_NL.numel()} cosines of the train pairs are {cosines_NL.flatten()[0]:.6g}, "
                "so they cannot be standardised; give pairs of different texts"
            )
        self.mean.copy_(cosines_NL.double().mean())
        self.deviation.copy_(deviation)

    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""
        standard_NL = (cosines(a, b) - self.mean) / self.deviation
        return self.mlp(standard_NL).squeeze(-1).sigmoid()

    def codes(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "n _"]]:
        """The latents themselves."""
        return list(x.unbind(dim=1))


class EncodedHead(PairHead):
    """A head on the codes of one encoder per layer; the two texts share the encoders."""

    encoders: LayerEncoders

    def codes(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "n _"]]:
        """The code of each layer."""
        return [code for group in self.encoders(x) for code in group.unbind()]

    def load_encoders(self, autoencoders: LayerAutoencoders) -> None:
        """Start from pretrained encoders: copies, which training then changes.

        Raises:
            InputError: they have other sizes, or this head's encoders are none of autoencoders.
        """
        given = autoencoders.encoders.state_dict()
        shapes = [
            {name: value.shape for name, value in state.items()}
            for state in (given, self.encoders.state_dict())
        ]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"the pretrained encoders ({autoencoders.encoders.describe()}) do not fit the head's "
                f"({self.encoders.describe()}); pretrain with the head's sizes, and only for heads whose "
                "encoders are those of autoencoders"
            )
        self.encoders.load_state_dict(given)


class LayerwiseSiamese(EncodedHead):
    """The cosine of the two codes of each layer, a network on the cosines, Hardsigmoid."""

    def __init__(self, encoders: LayerEncoders, mlp: nn.Module) -> None:
        super().__init__()
        self.encoders = encoders
        self.mlp = mlp

    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""
        # Apart rather than in one batch: a row's rounding depends on its place in a batch, and this
        # way a pair has the same similarity in either order.
        groups = zip(self.encoders(a), self.encoders(b), strict=True)
        cosines_LN = torch.cat([cosines(one, other) for one, other in groups])
        return nn.functional.hardsigmoid(self.mlp(cosines_LN.t()).squeeze(-1))


class Unified(EncodedHead):
    """One embedding per text; the similarity is (1 + cosine) / 2, which orders pairs as the cosine."""

    def __init__(self, encoders: LayerEncoders, join: nn.Module) -> None:
        super().__init__()
        self.encoders = encoders
        self.join = join

    def embed(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return self.join(self.codes(x))

    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""
        # Rounding may carry a cosine past 1.
        return ((1 + cosines(self.embed(a), self.embed(b))) / 2).clamp(0, 1)


class Concatenate(nn.Module):
    """Codes side by side."""

    def forward(self, codes: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return torch.cat(list(codes), dim=1)


class Average(nn.Module):
    """The mean code."""

    def forward(self, codes: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
        """The embedding of each text."""
        return torch.stack(list(codes)).mean(dim=0)


class SumOfProjections(nn.Module):
    """Each code projected up, then their sum: one linear map of the codes side by side."""

    def __init__(self, d_codes: int, d_embed: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear(d_codes, d_embed, generator)

    def forward(self, codes: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return self.linear(torch.cat(list(codes), dim=1))
