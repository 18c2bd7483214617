"""What heads on the latents of all layers build: modules that give two texts a similarity.

Source: FREEZE!, 4.2. Axes: n pairs, l layers, d width of a latent, c width of a code, e of an embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.freeze.code_joins import SumOfProjections
from permafrost.stages.freeze.encoders import LayerEncoders, PretrainedEncoders
from permafrost.stages.freeze.layers_head import Output
from permafrost.stages.freeze.scaling import AsTheyAre
from permafrost.stages.heads.initialise import linear
from permafrost.storage.errors import InputError

_LEAST = 1e-24
"""Lower bound of the product of squared norms, so that a zero vector has cosine 0."""


def cosines(a: Float[Tensor, "*n c"], b: Float[Tensor, "*n c"]) -> Float[Tensor, "*n"]:
    """Cosine along the last axis; a vector with itself gives exactly 1.

    This takes one square root of the product, as the root of a rounded square is exact.
    """
    squares = a.square().sum(dim=-1) * b.square().sum(dim=-1)
    return (a * b).sum(dim=-1) / squares.clamp_min(_LEAST).sqrt()


class PairHead(nn.Module, ABC):
    """Similarity of two texts from their latents `[n_layers, d_model]` each, scaled by `scaling`."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling = AsTheyAre()
        """Applied by whoever calls the head; part of what is trained and kept."""

    @abstractmethod
    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""

    @abstractmethod
    def codes(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "n _"]]:
        """The vectors that are compared, one per layer, in order."""

    def prepare(
        self, pairs: Iterable[tuple[Float[Tensor, "n l d"], Float[Tensor, "n l d"]]]
    ) -> None:
        """Called with the latents of the train pairs before training; most heads do not need it."""
        return

    def load_encoders(self, autoencoders: PretrainedEncoders) -> None:
        """Start from copies of pretrained encoders.

        Raises:
            InputError: this head has no encoders, or they have other shapes.
        """
        raise InputError("pretrained encoders were given to a head that has none; leave them out")

    @property
    def n_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


def similarities(
    head: PairHead, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]
) -> Float[Tensor, " n"]:
    """What a head gives for pairs of latents; a loss would broadcast other shapes against the labels.

    Raises:
        InputError: it is not one number per pair, as a plug-in's may be, or has no gradient where gradients
            are computed.
    """
    found: object = head(a, b)
    if not isinstance(found, Tensor) or found.shape != (len(a),):
        gave = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"{type(head).__name__} gave {gave} for {len(a)} pairs; return one similarity per pair, a tensor "
            f"[{len(a)}]"
        )
    if torch.is_grad_enabled() and not found.requires_grad:
        raise InputError(
            f"{type(head).__name__} gave similarities without a gradient, so nothing could be learnt; "
            "compute them in torch, without detach() and no_grad()"
        )
    return found


class EncodedHead(PairHead):
    """A head on the codes of one encoder per layer; the two texts share the encoders."""

    encoders: LayerEncoders

    def codes(self, x: Float[Tensor, "n l d"]) -> list[Float[Tensor, "n _"]]:
        """The code of each layer."""
        return [code for group in self.encoders(x) for code in group.unbind()]

    def load_encoders(self, autoencoders: PretrainedEncoders) -> None:
        """Start from copies of pretrained encoders.

        Raises:
            InputError: they have other sizes, or this head's encoders are not those of autoencoders.
        """
        pretrained = autoencoders.encoders.state_dict()
        shapes = [
            {name: value.shape for name, value in state.items()}
            for state in (pretrained, self.encoders.state_dict())
        ]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"the pretrained encoders ({autoencoders.encoders.describe()}) do not fit the head's "
                f"({self.encoders.describe()}); pretrain with the head's sizes, and only for heads whose "
                "encoders are those of autoencoders"
            )
        self.encoders.load_state_dict(pretrained)


_OUTPUTS = {"hardsigmoid": nn.functional.hardsigmoid, "sigmoid": torch.sigmoid}


class LayerwiseSiamese(EncodedHead):
    """The cosine of the two codes of each layer, an MLP on the cosines, Hardsigmoid or sigmoid."""

    def __init__(self, encoders: LayerEncoders, mlp: nn.Module, output: Output) -> None:
        super().__init__()
        self.encoders = encoders
        self.mlp = mlp
        self.output: Output = output

    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""
        # Separately rather than in one batch: a row's rounding depends on its place in a batch, and this way
        # a pair has the same similarity in either order.
        groups = zip(self.encoders(a), self.encoders(b), strict=True)
        cosines_LN = torch.cat([cosines(one, other) for one, other in groups])
        return _OUTPUTS[self.output](self.mlp(cosines_LN.t()).squeeze(-1))


class Unified(EncodedHead):
    """One embedding per text; the similarity is (1 + cosine) / 2, which ranks pairs like the cosine."""

    def __init__(self, encoders: LayerEncoders, join: nn.Module) -> None:
        super().__init__()
        self.encoders = encoders
        self.join = join

    def load_encoders(self, autoencoders: PretrainedEncoders) -> None:
        """Start from copies of pretrained encoders, and of their maps up where both have them.

        Raises:
            InputError: they have other sizes.
        """
        super().load_encoders(autoencoders)
        if autoencoders.up is not None and isinstance(self.join, SumOfProjections):
            self.join.load_state_dict(autoencoders.up.state_dict())

    def embed(self, x: Float[Tensor, "n l d"]) -> Float[Tensor, "n e"]:
        """The embedding of each text."""
        return self.join(self.codes(x))

    def forward(self, a: Float[Tensor, "n l d"], b: Float[Tensor, "n l d"]) -> Float[Tensor, " n"]:
        """Similarity of each pair, in [0, 1]."""
        # Rounding may push a cosine past 1.
        return ((1 + cosines(self.embed(a), self.embed(b))) / 2).clamp(0, 1)


class CosineMlp(PairHead):
    """Standardised cosines of the raw latents, an MLP with ReLU, sigmoid.

    A single mean and standard deviation serve all layers. We differ: the notebook computes them on the very
    split that is scored, we on train.
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

    def prepare(
        self, pairs: Iterable[tuple[Float[Tensor, "n l d"], Float[Tensor, "n l d"]]]
    ) -> None:
        """Compute mean and standard deviation from the cosines of the train pairs."""
        self.standardise_by(torch.cat([cosines(a, b) for a, b in pairs]))

    def standardise_by(self, cosines_NL: Float[Tensor, "n l"]) -> None:
        """Set mean and standard deviation to those of these cosines.

        Raises:
            InputError: all cosines are equal.
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
