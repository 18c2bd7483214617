"""One row per text and layer: what heads on every layer read (FREEZE!)."""

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.nodes.reading import arrays_of, readers
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.stages.extraction.capture import CaptureItem, LayersText, checked_layers, in_order
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError


class Latents(BaseModel):
    """One row per text and layer: what the layer-wise heads of FREEZE! read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""
    layers: LayersText = "all"
    """Hidden states: `all` (blocks 1..L), `half`, indices and ranges."""
    at: Literal["last", "readout", "mean", "sum"] = "last"
    """FREEZE! reads the last token, and tried the mean and the sum of all."""

    @field_validator("layers")
    @classmethod
    def _layers_are_valid(cls, layers: str) -> str:
        return checked_layers(layers)

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Pooled arrays, one per layer.

        Raises:
            InputError: a layer that the backbone does not have; the message begins with the field.
        """
        layers = f"1-{sizes.n_layers}" if self.layers == "all" else self.layers
        item = CaptureItem(what="hidden", layers=layers, at=self.at)
        try:
            return in_order(name.text for name in item.names(sizes))
        except InputError as error:
            raise InputError(f"latents.layers: {error}") from error


def latents(node: Node, context: RunContext, corpus: str = "corpus") -> np.ndarray:
    """Latents of the texts of a node's corpus `[n_texts, n_layers, d_model]`, or of another input of it that
    is one."""
    from permafrost.stages.freeze.latents import read_latents

    opened = readers(node, context, corpus=corpus)
    return read_latents([opened[array] for array in arrays_of(node)])
