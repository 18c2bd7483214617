"""Encoders of pooled latents, one per layer, and the autoencoders that pretrain them.

Source: FREEZE!, 4.2.2 and 4.2.3, widths and activations as in the released notebooks. The notebooks of
one experiment add a tenth of the input to the reconstruction; like the final model we do not.
Axes: n texts, l layers, d width of a latent, c width of a code.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.freeze.config import EncoderSizes
from permafrost.stages.freeze.stacked import Dropout, StackedLinear, StackedNorm, xavier_linear


class LayerGroups(nn.Module):
    """Layers whose networks have the same widths are computed together, one group after the other."""

    def __init__(self, sizes: Sequence[int], networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.networks = nn.ModuleList(networks)

    def forward(self, parts: Sequence[Float[Tensor, "_ n _"]]) -> list[Float[Tensor, "_ n _"]]:
        """Each group's network on its part."""
        return [network(part) for network, part in zip(self.networks, parts, strict=True)]

    def split(self, x: Float[Tensor, "n l d"]) -> tuple[Float[Tensor, "_ n d"], ...]:
        """The layers of each group, layers first."""
        return x.transpose(0, 1).split(self.sizes)


class LayerEncoders(nn.Module):
    """One encoder per layer of the backbone."""

    def __init__(self, d_model: int, widths: Sequence[int], groups: LayerGroups) -> None:
        super().__init__()
        self.d_model = d_model
        self.widths = tuple(widths)
        """Width of each group's codes."""
        self.groups = groups

    @property
    def n_layers(self) -> int:
        """Layers of the backbone."""
        return sum(self.groups.sizes)

    def forward(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "_ n _"]]:
        """The codes of each group of layers, layers first."""
        return self.groups(self.groups.split(x))

    def describe(self) -> str:
        """The sizes in words, for messages."""
        groups = zip(self.groups.sizes, self.widths, strict=True)
        codes = " and ".join(f"{n} layers of {width}" for n, width in groups)
        return f"{self.d_model}-wide latents, codes of {codes}"


def siamese_encoders(
    n_layers: int, d_model: int, d_code: int, generator: torch.Generator
) -> LayerEncoders:
    """Three linear layers per encoder, the first with a layer norm, none after the last."""
    network = nn.Sequential(
        StackedLinear(n_layers, d_model, d_code, generator),
        StackedNorm(n_layers, d_code),
        nn.GELU(),
        StackedLinear(n_layers, d_code, d_code, generator),
        nn.GELU(),
        StackedLinear(n_layers, d_code, d_code, generator),
    )
    return LayerEncoders(d_model, [d_code], LayerGroups([n_layers], [network]))


def _groups(sizes: EncoderSizes, n_layers: int) -> list[tuple[int, int]]:
    """How many layers have codes of which width, in order."""
    early = n_layers // 2
    if sizes.early == sizes.late or not early:
        return [(n_layers, sizes.late)]
    return [(early, sizes.early), (n_layers - early, sizes.late)]


def _block(n: int, d_in: int, d_out: int, dropout: float, draw: torch.Generator) -> list[nn.Module]:
    return [
        xavier_linear(n, d_in, d_out, draw),
        StackedNorm(n, d_out),
        Dropout(dropout, draw),
        nn.GELU(),
    ]


def autoencoder_encoders(
    sizes: EncoderSizes, n_layers: int, d_model: int, generator: torch.Generator
) -> LayerEncoders:
    """The encoding half: d_model to the middle of d_model and the code, then to the code."""

    def network(n: int, width: int) -> nn.Module:
        middle = (d_model + width) // 2
        return nn.Sequential(
            *_block(n, d_model, middle, sizes.dropout, generator),
            *_block(n, middle, width, sizes.dropout, generator),
        )

    return LayerEncoders(
        d_model,
        [width for _, width in _groups(sizes, n_layers)],
        _networks(sizes, n_layers, network),
    )


def _networks(
    sizes: EncoderSizes, n_layers: int, network: Callable[[int, int], nn.Module]
) -> LayerGroups:
    groups = _groups(sizes, n_layers)
    return LayerGroups([n for n, _ in groups], [network(n, width) for n, width in groups])


class LayerAutoencoders(nn.Module):
    """One autoencoder per layer; no layer sees another's numbers."""

    def __init__(
        self, sizes: EncoderSizes, n_layers: int, d_model: int, generator: torch.Generator
    ) -> None:
        super().__init__()

        def network(n: int, width: int) -> nn.Module:
            middle = (d_model + width) // 2
            return nn.Sequential(
                *_block(n, width, middle, sizes.dropout, generator),
                xavier_linear(n, middle, d_model, generator),
            )

        self.encoders = autoencoder_encoders(sizes, n_layers, d_model, generator)
        self.decoders = _networks(sizes, n_layers, network)

    def forward(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n l d"]:
        """The reconstruction."""
        return torch.cat(self.decoders(self.encoders(x))).transpose(0, 1)

    def errors(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, " l"]:
        """Mean squared error of the reconstruction, per layer."""
        parts = zip(self.decoders(self.encoders(x)), self.encoders.groups.split(x), strict=True)
        return torch.cat([(made - given).square().mean(dim=(1, 2)) for made, given in parts])

    @property
    def n_parameters(self) -> int:
        """Trained numbers."""
        return sum(parameter.numel() for parameter in self.parameters())

    def by_layer(self) -> list[tuple[list[nn.Parameter], int]]:
        """For each layer, the parameters that hold it and its row in them."""
        pairs = zip(self.encoders.groups.networks, self.decoders.networks, strict=True)
        return [
            ([*encoder.parameters(), *decoder.parameters()], row)
            for size, (encoder, decoder) in zip(self.encoders.groups.sizes, pairs, strict=True)
            for row in range(size)
        ]
