"""The same small network once per layer of the backbone, all layers in one product.

Axes: l layers, n texts, i and o widths in and out.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """One linear map per layer.

    Biases have torch's default distribution, uniform within 1 / sqrt(d_in); weights are uniform within
    `bound`, where that is None within 1 / sqrt(d_in) too.
    """

    def __init__(
        self,
        n_layers: int,
        d_in: int,
        d_out: int,
        generator: torch.Generator,
        bound: float | None = None,
    ) -> None:
        super().__init__()
        default = 1 / math.sqrt(d_in)
        weight_LIO, bias_L1O = torch.empty(n_layers, d_in, d_out), torch.empty(n_layers, 1, d_out)
        within = default if bound is None else bound
        nn.init.uniform_(weight_LIO, -within, within, generator=generator)
        nn.init.uniform_(bias_L1O, -default, default, generator=generator)
        self.weight = nn.Parameter(weight_LIO)
        self.bias = nn.Parameter(bias_L1O)

    def forward(self, x: Float[Tensor, "l n i"]) -> Float[Tensor, "l n o"]:
        """Each layer through its own map."""
        return torch.baddbmm(self.bias, x, self.weight)


def xavier_linear(
    n_layers: int, d_in: int, d_out: int, generator: torch.Generator
) -> StackedLinear:
    """Weights Xavier uniform with gain 0.5, biases torch's default, as the FREEZE! autoencoders."""
    return StackedLinear(n_layers, d_in, d_out, generator, 0.5 * math.sqrt(6 / (d_in + d_out)))


class StackedNorm(nn.Module):
    """One layer norm per layer."""

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_layers, 1, width))
        self.bias = nn.Parameter(torch.zeros(n_layers, 1, width))

    def forward(self, x: Float[Tensor, "l n i"]) -> Float[Tensor, "l n i"]:
        """Each text's vector standardised, then scaled and shifted by its layer's own numbers."""
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, x.shape[-1:]), self.weight)


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own, so that a fit depends on its seed alone.

    The masks of a seed differ between kinds of device.
    """

    def __init__(self, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.share = share
        self._seed = int(torch.randint(1 << 62, (), generator=generator))
        self._draw: torch.Generator | None = None

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n i"]:
        """While training, a `share` of the numbers set to 0 and the others scaled up."""
        if not self.training or not self.share:
            return x
        if self._draw is None or self._draw.device != x.device:
            self._draw = torch.Generator(x.device).manual_seed(self._seed)
        kept = torch.empty_like(x).bernoulli_(1 - self.share, generator=self._draw)
        return x * kept.div_(1 - self.share)
