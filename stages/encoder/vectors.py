"""From features to one vector per text: by a trained head, a head on every layer, or a method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.config import EmbedConfig, layers_of
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.finish import finish, of_unit_length, require_finite
from permafrost.stages.embed.head import embed_with_head
from permafrost.stages.embed.layers import combined_layers, embed_ensemble
from permafrost.stages.embed.whitening import Whitening
from permafrost.stages.encoder.code_of import code_of
from permafrost.stages.encoder.digests import weights_digest
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit.trained import LoadedHead
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.stages.freeze.latents import read_latents
from permafrost.stages.freeze.pair_heads import PairHead, Unified
from permafrost.storage.progress import Progress

Name = Callable[[int], str]
"""Gives a text's name for messages."""


@runtime_checkable
class TextVectors(Protocol):
    """A way to compute vectors from features."""

    @property
    def d_out(self) -> int:
        """Width of a vector."""
        ...

    @property
    def module(self) -> torch.nn.Module | None:
        """The module with parameters; None for a method without any."""
        ...

    @property
    def n_parameters(self) -> int:
        """Trained numbers."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the vectors, beside the features, in plain JSON types and configs."""
        ...

    def of(self, features: Features, progress: Progress) -> Vectors:
        """Vectors of all texts under one recipe `[n_texts, width]` float32.

        The vector of a text does not depend on the other texts.
        """
        ...

    def joined(self, prompts: Sequence[Vectors], name: Name) -> Vectors:
        """Combine the vectors under each recipe of an ensemble to `[n_texts, d_out]` float32.

        Raises:
            InputError: a vector is not finite.
        """
        ...


@dataclass(frozen=True)
class HeadVectors:
    """A head on the tokens of one array."""

    head: LoadedHead
    normalise: Literal["none", "l2"] = field(default="none", kw_only=True)
    """`l2` divides each vector by its length, last of all."""

    @property
    def d_out(self) -> int:
        """Width of a vector; a projection on top does not change it."""
        return self.head.pooling.d_out

    @property
    def module(self) -> torch.nn.Module:
        """The head."""
        return self.head

    @property
    def n_parameters(self) -> int:
        """Of the head."""
        return self.head.n_parameters

    @property
    def identity(self) -> Mapping[str, Any]:
        """The head as it was configured, its weights, and what is done to vectors."""
        config = self.head.config
        return {
            "head": config,
            "task": self.head.facts.task,
            "weights": weights_digest(self.head.state_dict()),
            "normalise": self.normalise,
            "code": code_of([config], type(self)),
        }

    def of(self, features: Features, progress: Progress) -> Vectors:
        """Pooled vectors, projected if the head was trained on graded pairs."""
        return embed_with_head(self.head, features.reader(self.head.layer, "span"), progress)

    def joined(self, prompts: Sequence[Vectors], name: Name) -> Vectors:
        """Those of the only prompt, as heads are not trained on ensembles, normalised as asked for."""
        vectors = only_prompt(prompts, name)
        return vectors if self.normalise == "none" else of_unit_length(vectors, name)


@dataclass(frozen=True)
class OnLatents(ABC):
    """A head on the pooled latents of every layer (FREEZE!, section 4)."""

    head: PairHead
    arrays: tuple[str, ...]
    """The pooled arrays, in the order in which the head was trained on them."""
    label_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest label that the head was trained on, for scores; vectors do not depend on it."""
    config: PairFitConfig = field(kw_only=True)
    """As it was trained."""

    @property
    def module(self) -> torch.nn.Module:
        """The head."""
        return self.head

    @property
    def n_parameters(self) -> int:
        """Of the head."""
        return self.head.n_parameters

    @property
    def identity(self) -> Mapping[str, Any]:
        """The head as it was configured, its weights, and the arrays that it reads."""
        return {
            "head": self.config,
            "weights": weights_digest(self.head.state_dict()),
            "arrays": self.arrays,
            "code": code_of([self.config], type(self)),
        }

    def of(self, features: Features, progress: Progress) -> Vectors:
        """What is computed of each text."""
        progress.start("embed", features.n_texts, "texts")
        try:
            return self.from_latents(
                read_latents([features.reader(a, "span") for a in self.arrays])
            )
        finally:
            progress.advance(features.n_texts)
            progress.finish()

    @abstractmethod
    def from_latents(self, latents: Float32[np.ndarray, "n l d"]) -> Vectors:
        """What is computed of each text, from the latents of its layers."""

    def joined(self, prompts: Sequence[Vectors], name: Name) -> Vectors:
        """The vectors unchanged, as heads are not trained on ensembles."""
        return only_prompt(prompts, name)


@dataclass(frozen=True)
class LatentVectors(OnLatents):
    """A head that computes one embedding from all layers, whose cosine is its similarity (FREEZE!, 4.3)."""

    head: Unified

    @property
    def d_out(self) -> int:
        """Width of a vector."""
        encoders = self.head.encoders
        return self._embed(torch.zeros(1, encoders.n_layers, encoders.d_model)).shape[1]

    def from_latents(self, latents: Float32[np.ndarray, "n l d"]) -> Vectors:
        """The embedding."""
        return self._embed(torch.from_numpy(latents)).cpu().numpy()

    @torch.no_grad()
    def _embed(self, latents: torch.Tensor) -> torch.Tensor:
        moved = latents.to(next(self.head.parameters()).device)
        return self.head.embed(self.head.scaling(moved))


@dataclass(frozen=True)
class MethodVectors:
    """A training-free method, with its layers given."""

    config: EmbedConfig
    sizes: BackboneSizes
    n_members: int
    """Number of prompts of an ensemble; 1 for any other recipe."""
    whitening: Whitening | None = None
    """The fitted whitening, if the method has one."""

    @property
    def d_out(self) -> int:
        """Width of a vector."""
        if self.whitening is not None:
            return self.whitening.matrix.shape[1]
        s, config = self.sizes, self.config
        width = config.method.width(config.of, s)
        if config.combine == "average":
            return width
        return width * len(layers_of(config, s)) * self.n_members

    @property
    def module(self) -> None:
        """None, as nothing has parameters."""
        return None

    @property
    def n_parameters(self) -> int:
        """None: whitening is fitted, not trained."""
        return 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """The method, the layers that its `layers` are of this backbone, and what was fitted."""
        fitted = None
        if self.whitening is not None:
            whitening = {"mean": self.whitening.mean, "matrix": self.whitening.matrix}
            fitted = weights_digest({n: torch.from_numpy(v.copy()) for n, v in whitening.items()})
        return {
            "method": self.config,
            "layers": layers_of(self.config, self.sizes),
            "prompts": self.n_members,
            "whitening": fitted,
            "code": code_of([self.config], type(self)),
        }

    def of(self, features: Features, progress: Progress) -> Vectors:
        """Vectors combined over layers, not yet combined over prompts or normalised."""
        return combined_layers(self.config, features, progress)

    def joined(self, prompts: Sequence[Vectors], name: Name) -> Vectors:
        """Vectors combined over prompts, then whitened and normalised as configured."""
        vectors = embed_ensemble(prompts, self.config.combine)
        return finish(self.config, vectors, name, whitening=self.whitening)


def only_prompt(prompts: Sequence[Vectors], name: Name) -> Vectors:
    """The vectors under the only recipe, all of them finite; raises InputError if one is not."""
    (vectors,) = prompts
    require_finite(vectors, name)
    return vectors
