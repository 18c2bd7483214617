"""Encoders of pooled latents, one per layer, and the autoencoders that pretrain them.

Each layer of the backbone has its own copy of a small network; all layers are computed in one batched matrix
product.

Source: FREEZE!, 4.2.2 and 4.2.3, widths and activations as in the released notebooks. The notebooks of
one experiment add a tenth of the input to the reconstruction; like the final model we do not.
Axes: n texts, l layers, d width of a latent, c width of a code, i and o widths in and out.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby, pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.freeze.code_joins import SumOfProjections
from permafrost.stages.freeze.encoder_sizes import EncoderSizes, LayerSize


class StackedLinear(nn.Module):
    """One linear map per layer.

    Biases have torch's default initialisation, uniform in ±1 / sqrt(d_in); weights are uniform in ±`bound`,
    by default the same.
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
        limit = default if bound is None else bound
        nn.init.uniform_(weight_LIO, -limit, limit, generator=generator)
        nn.init.uniform_(bias_L1O, -default, default, generator=generator)
        self.weight = nn.Parameter(weight_LIO)
        self.bias = nn.Parameter(bias_L1O)

    def forward(self, x: Float[Tensor, "l n i"]) -> Float[Tensor, "l n o"]:
        """Apply each layer's own map."""
        return torch.baddbmm(self.bias, x, self.weight)


def xavier_linear(
    n_layers: int, d_in: int, d_out: int, generator: torch.Generator
) -> StackedLinear:
    """Xavier uniform weights with gain 0.5, torch's default biases, as in the FREEZE! autoencoders."""
    return StackedLinear(n_layers, d_in, d_out, generator, 0.5 * math.sqrt(6 / (d_in + d_out)))


class StackedNorm(nn.Module):
    """One layer norm per layer."""

    def __init__(self, n_layers: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_layers, 1, width))
        self.bias = nn.Parameter(torch.zeros(n_layers, 1, width))

    def forward(self, x: Float[Tensor, "l n i"]) -> Float[Tensor, "l n i"]:
        """Normalise each text's vector, then apply its layer's own scale and shift."""
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, x.shape[-1:]), self.weight)


class Dropout(nn.Module):
    """Dropout with its own generator, so that a fit depends on its seed alone.

    The same seed gives different masks on different kinds of device.
    """

    def __init__(self, share: float, generator: torch.Generator) -> None:
        super().__init__()
        self.share = share
        self._seed = int(torch.randint(1 << 62, (), generator=generator))
        self._draw: torch.Generator | None = None

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n i"]:
        """In training, set a `share` of the elements to 0 and scale up the others."""
        if not self.training or not self.share:
            return x
        if self._draw is None or self._draw.device != x.device:
            self._draw = torch.Generator(x.device).manual_seed(self._seed)
        kept = torch.empty_like(x).bernoulli_(1 - self.share, generator=self._draw)
        return x * kept.div_(1 - self.share)

    def drawn(self) -> Tensor | None:
        """The state of the generator, on the CPU; None before anything was drawn."""
        return None if self._draw is None else self._draw.get_state()

    def draw_on(self, device: torch.device, state: Tensor) -> None:
        """Draw from now on as the generator on `device` that had this state."""
        self._draw = torch.Generator(device)
        self._draw.set_state(state)


def dropout_states(model: nn.Module) -> dict[str, Tensor]:
    """The state of every dropout that has drawn, by its name in the model; not part of `state_dict`, as no
    result depends on it."""
    states = {n: m.drawn() for n, m in model.named_modules() if isinstance(m, Dropout)}
    return {name: state for name, state in states.items() if state is not None}


def load_dropout_states(
    model: nn.Module, states: Mapping[str, Tensor], device: torch.device
) -> None:
    """Restore what `dropout_states` gave for a model on the same kind of device."""
    for name, module in model.named_modules():
        if isinstance(module, Dropout) and name in states:
            module.draw_on(device, states[name])


class LayerGroups(nn.Module):
    """Computes layers whose networks have the same widths together, group by group."""

    def __init__(self, sizes: Sequence[int], networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.networks = nn.ModuleList(networks)

    def forward(self, parts: Sequence[Float[Tensor, "_ n _"]]) -> list[Float[Tensor, "_ n _"]]:
        """Apply each group's network to its part."""
        return [network(part) for network, part in zip(self.networks, parts, strict=True)]

    def split(self, x: Float[Tensor, "n l d"]) -> tuple[Float[Tensor, "_ n d"], ...]:
        """The layers of each group, with the layer axis first."""
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
        """Number of layers."""
        return sum(self.groups.sizes)

    @property
    def d_codes(self) -> int:
        """Width of the codes of all layers side by side."""
        return sum(n * width for n, width in zip(self.groups.sizes, self.widths, strict=True))

    def forward(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "_ n _"]]:
        """The codes of each group of layers, with the layer axis first."""
        return self.groups(self.groups.split(x))

    def describe(self) -> str:
        """The sizes as text, for messages."""
        groups = zip(self.groups.sizes, self.widths, strict=True)
        codes = " and ".join(f"{n} layers of {width}" for n, width in groups)
        return f"{self.d_model}-wide latents, codes of {codes}"


def _groups(sizes: EncoderSizes, n_layers: int) -> list[tuple[int, LayerSize]]:
    """Number of neighbouring layers with encoders of the same size, and that size, in order."""
    return [(len([*group]), size) for size, group in groupby(sizes.by_layer(n_layers))]


_ACTIVATIONS = {"gelu": nn.GELU, "silu": nn.SiLU}


def activation(sizes: EncoderSizes) -> nn.Module:
    """That of encoders, and of what is trained on top of them."""
    return _ACTIVATIONS[sizes.activation]()


def _block(
    n: int, d_in: int, d_out: int, sizes: EncoderSizes, draw: torch.Generator
) -> list[nn.Module]:
    return [
        xavier_linear(n, d_in, d_out, draw),
        StackedNorm(n, d_out),
        Dropout(sizes.dropout, draw),
        activation(sizes),
    ]


def autoencoder_encoders(
    sizes: EncoderSizes, n_layers: int, d_model: int, generator: torch.Generator
) -> LayerEncoders:
    """The encoding half: from d_model to the middle width, then to the code."""

    def network(n: int, size: LayerSize) -> nn.Module:
        middle = sizes.middle_width(d_model, size.width)
        widths = [d_model, *[middle] * size.middle, size.width]
        blocks = (_block(n, i, o, sizes, generator) for i, o in pairwise(widths))
        return nn.Sequential(*chain.from_iterable(blocks))

    return LayerEncoders(
        d_model,
        [size.width for _, size in _groups(sizes, n_layers)],
        _networks(sizes, n_layers, network),
    )


def _networks(
    sizes: EncoderSizes, n_layers: int, network: Callable[[int, LayerSize], nn.Module]
) -> LayerGroups:
    groups = _groups(sizes, n_layers)
    return LayerGroups([n for n, _ in groups], [network(n, size) for n, size in groups])


ByLayer = list[tuple[list[nn.Parameter], int]]
"""For each layer the parameters that it is part of, and its row in them."""


def rows_by_layer(*parts: LayerGroups) -> ByLayer:
    """Of networks that have the same groups of layers."""
    networks = zip(*(part.networks for part in parts), strict=True)
    return [
        ([p for network in group for p in network.parameters()], row)
        for size, group in zip(parts[0].sizes, networks, strict=True)
        for row in range(size)
    ]


@torch.no_grad()
def copy_layers(own: ByLayer, into: ByLayer, layers: Sequence[int]) -> None:
    """Copy the parameters of some layers, by their place from 0."""
    for (copies, row), layer in zip(into, layers, strict=True):
        originals, original_row = own[layer]
        for copy, original in zip(copies, originals, strict=True):
            copy[row].copy_(original[original_row])


class PretrainedEncoders(nn.Module, ABC):
    """What heads start from: one encoder per layer, and what it was trained with."""

    encoders: LayerEncoders
    up: SumOfProjections | None
    """Maps of all codes to one embedding; None where there are none."""

    @abstractmethod
    def by_layer(self) -> ByLayer:
        """For each layer the parameters that it is part of, and its row in them."""

    @abstractmethod
    def of_layers(self, layers: Sequence[int]) -> "PretrainedEncoders":
        """Copies of those of some layers, by their place from 0, ascending."""


class LayerAutoencoders(PretrainedEncoders):
    """One autoencoder per layer; they share nothing, but for the sum that `joined` decoders read."""

    def __init__(
        self,
        sizes: EncoderSizes,
        n_layers: int,
        d_model: int,
        generator: torch.Generator,
        joined: int | None = None,
    ) -> None:
        """Args: joined: width of the sum of all codes' maps up, which decoders read; None: their own code."""
        super().__init__()

        def network(n: int, size: LayerSize) -> nn.Module:
            middle = sizes.middle_width(d_model, size.width)
            return nn.Sequential(
                *_block(n, joined or size.width, middle, sizes, generator),
                xavier_linear(n, middle, d_model, generator),
            )

        self.sizes = sizes
        self.encoders = autoencoder_encoders(sizes, n_layers, d_model, generator)
        self.decoders = _networks(sizes, n_layers, network)
        self.up = None
        if joined is not None:
            self.up = SumOfProjections(self.encoders.d_codes, joined, generator)

    def forward(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n l d"]:
        """The reconstruction."""
        return torch.cat(self._outputs(x)).transpose(0, 1)

    def errors(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, " l"]:
        """Mean squared error of the reconstruction, per layer."""
        parts = zip(self._outputs(x), self.encoders.groups.split(x), strict=True)
        return torch.cat([(output - x).square().mean(dim=(1, 2)) for output, x in parts])

    def _outputs(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "_ n d"]]:
        codes = self.encoders(x)
        if self.up is None:
            return self.decoders(codes)
        sum_NE = self.up([code for group in codes for code in group.unbind()])
        return self.decoders([sum_NE.expand(n, -1, -1) for n in self.decoders.sizes])

    def of_layers(self, layers: Sequence[int]) -> "LayerAutoencoders":
        """Copies of those of some layers, by their place from 0, ascending."""
        n_layers, d_model = self.encoders.n_layers, self.encoders.d_model
        sizes = self.sizes.of_layers(layers, n_layers)
        assert self.up is None, "a sum over layers has no part for some of them"
        chosen = LayerAutoencoders(sizes, len(layers), d_model, torch.Generator())
        copy_layers(self.by_layer(), chosen.by_layer(), layers)
        return chosen

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def by_layer(self) -> ByLayer:
        """For each layer the parameters that it is part of, and its row in them."""
        return rows_by_layer(self.encoders.groups, self.decoders)
