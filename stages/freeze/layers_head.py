"""The base classes of heads on the latents of all layers.

Source: FREEZE!, 4.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from permafrost.stages.freeze.encoder_sizes import EncoderSizes
from permafrost.stages.freeze.later_fields import LaterFields
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.late_names import late_names
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch

    from permafrost.stages.freeze.pair_heads import EncodedHead as EncodedHead
    from permafrost.stages.freeze.pair_heads import LayerwiseSiamese as LayerwiseSiamese
    from permafrost.stages.freeze.pair_heads import PairHead as PairHead
    from permafrost.stages.freeze.pair_heads import Unified as Unified
    from permafrost.stages.freeze.pair_heads import cosines as cosines

__getattr__ = late_names(__name__)

Output = Literal["hardsigmoid", "sigmoid"]
"""What makes a similarity of an MLP's output: the released notebooks have `hardsigmoid`, the paper prints
`sigmoid` (FREEZE!, 4.2)."""


class LayersHead(LaterFields, Kind, ABC):
    """The field `head` of a method of kind `layers`; the defaults are the notebooks' final model's."""

    has_vector: ClassVar[bool] = False
    """Whether it gives a text a vector: it then builds a `Unified`."""

    @property
    def encoder_sizes(self) -> EncoderSizes | None:
        """Sizes of the pretrained encoders that it may start from; None if it cannot."""
        return None

    @property
    def join_width(self) -> int | None:
        """Width of the sum of its codes' maps up; None if it has none."""
        return None

    @abstractmethod
    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """A head for latents `[n_layers, d_model]`, its weights drawn from `generator` (on the CPU)."""


LAYERS_HEADS = Category("head on all layers", LayersHead, "permafrost.stages.freeze")
PairHeadConfig = Annotated[LayersHead, LAYERS_HEADS.field()]
"""Any head on all layers, by its `kind`."""


class AutoencodedHead(LayersHead):
    """A head whose encoders are those of layer autoencoders, and may be pretrained."""

    encoders: EncoderSizes = EncoderSizes()
    """Widths of the codes; a pretraining that the head starts from has the same."""

    @property
    def encoder_sizes(self) -> EncoderSizes:
        """The sizes of its own encoders."""
        return self.encoders


def heads_with_vectors() -> str:
    """Names of the heads that give a text a vector, for messages."""
    return " and ".join(quoted(n) for n, k in LAYERS_HEADS.kinds().items() if k.has_vector)
