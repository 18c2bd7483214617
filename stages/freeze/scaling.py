"""Latents as a head or autoencoders see them: as they are, centred, or standardised.

Source: FREEZE!, 3.2, finds no help in standardising and does not say along which axis; its released GPT-2
notebooks centre the residual stream, as transformer_lens does by default. Axes: n texts, l layers, d d_model.
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.freeze.config import Scale

_LEAST = 1e-6
"""Lower bound of a standard deviation: a constant carries no information."""


class AsTheyAre(nn.Module):
    """Latents unchanged."""

    def fit(self, latents: Callable[[], Iterable[Float[Tensor, "n l d"]]]) -> None:
        """Nothing to learn from training texts, given in parts."""
        return

    def forward(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n l d"]:
        """Scaled latents."""
        return x


class Centred(AsTheyAre):
    """Every latent minus the mean of its own numbers."""

    def forward(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n l d"]:
        """Scaled latents."""
        return x - x.mean(dim=-1, keepdim=True)


class Standard(Centred):
    """Every latent with mean 0 and standard deviation 1 (divided by d) over its own numbers."""

    def forward(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n l d"]:
        """Scaled latents."""
        centred = super().forward(x)
        return centred / x.std(dim=-1, correction=0, keepdim=True).clamp_min(_LEAST)


class StandardFeatures(AsTheyAre):
    """Every number of every layer with mean 0 and standard deviation 1 (divided by n) over training texts."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, n_layers: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_layers, d_model))
        self.register_buffer("deviation", torch.ones(n_layers, d_model))

    def fit(self, latents: Callable[[], Iterable[Float[Tensor, "n l d"]]]) -> None:
        """Mean and standard deviation over training texts, which are given in parts, twice."""
        n = sum(len(x) for x in latents())
        mean = sum((x.double().sum(dim=0) for x in latents()), torch.zeros(())) / n
        squares = ((x.double() - mean).square().sum(dim=0) for x in latents())
        self.mean.copy_(mean)
        self.deviation.copy_((sum(squares, torch.zeros(())) / n).sqrt().clamp_min(_LEAST))

    def forward(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n l d"]:
        """Scaled latents."""
        return (x - self.mean) / self.deviation


def scaling(scale: Scale, n_layers: int, d_model: int) -> AsTheyAre:
    """The module of a scale; one that learns has still to."""
    if scale == "feature":
        return StandardFeatures(n_layers, d_model)
    return {"none": AsTheyAre, "centred": Centred, "vector": Standard}[scale]()
