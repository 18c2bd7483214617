"""Sizes of the encoders of pooled latents, one per layer.

Source: FREEZE!, 4.2.3; widths and activations are those of the released notebooks.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.freeze.later_fields import LaterFields
from permafrost.storage.errors import InputError


class LayerSize(NamedTuple):
    """What the encoder of one layer has."""

    width: int
    """Of its code."""
    middle: int
    """Blocks of the middle width, between that of latents and that of codes."""


class EncoderSizes(LaterFields):
    """Widths of the layer autoencoders (FREEZE!, 4.2.3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    later_fields: ClassVar[frozenset[str]] = frozenset({"widths", "middle", "activation", "inner"})

    early: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Code width in the first half of the layers."""
    late: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Code width in the second half, which includes the middle layer of an odd number."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """In training, after the layers of encoders and decoders."""
    widths: tuple[Annotated[int, Field(ge=1, le=MAX_WIDTH)], ...] | None = None
    """Code width of every layer that is read, in order, in place of `early` and `late`."""
    middle: tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...] | None = None
    """Blocks of the middle width in the encoder of every layer, in order; one in each if not given. Decoders
    have one."""
    activation: Literal["gelu", "silu"] = "gelu"
    """After every block, also of the MLP of `autoencoder_siamese`; the notebooks have SiLU for Qwen."""
    inner: Literal["mean", "latent"] = "mean"
    """Width of middle blocks: the mean of a latent's and a code's, or a latent's, as in the encoders that
    the notebooks train on SNLI."""

    def by_layer(self, n_layers: int) -> tuple[LayerSize, ...]:
        """Of the encoder of every layer, in order.

        Raises:
            InputError: `widths` or `middle` are those of another number of layers.
        """
        n_early = n_layers // 2
        halves = (self.early,) * n_early + (self.late,) * (n_layers - n_early)
        widths = halves if self.widths is None else self.widths
        middle = (1,) * n_layers if self.middle is None else self.middle
        for name, given in (("widths", widths), ("middle", middle)):
            if len(given) != n_layers:
                raise InputError(
                    f"encoders.{name} has {len(given)} numbers for {n_layers} layers; give one for each "
                    "layer that is read"
                )
        return tuple(map(LayerSize, widths, middle))

    def middle_width(self, d_model: int, width: int) -> int:
        """Width of the middle blocks of an encoder of `width`."""
        return (d_model + width) // 2 if self.inner == "mean" else d_model

    def of_layers(self, layers: Sequence[int], n_layers: int) -> "EncoderSizes":
        """The sizes of some of `n_layers` layers, by their place from 0."""
        widths, middle = zip(*(self.by_layer(n_layers)[i] for i in layers), strict=True)
        return self.model_copy(update={"widths": widths, "middle": middle})
