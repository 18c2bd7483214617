"""One embedding per text from the codes of all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from permafrost.stages.freeze.layers_head import AutoencodedHead

if TYPE_CHECKING:
    import torch

    from permafrost.stages.freeze.pair_heads import PairHead


class UnifiedHead(AutoencodedHead):
    """One embedding per text from the codes of all layers; the similarity is their cosine.

    Our own variant, beside `unified_projection`, which is the paper's (FREEZE!, 4.3). `attention` is what the
    paper tried over the codes (4.3), whose details it does not give; `weights` is what its released notebook
    has, on codes that are projected there.
    """

    has_vector: ClassVar[bool] = True

    kind: Literal["unified"] = "unified"
    join: Literal["concatenate", "average", "weights", "attention"] = "concatenate"
    """How the codes of the layers become one vector: side by side, their mean, their mean with one learnt
    weight for each layer (a softmax), or with weights from a learnt query, which differ from text to text."""

    @model_validator(mode="after")
    def _codes_can_be_averaged(self) -> UnifiedHead:
        sizes = self.encoders
        widths = {sizes.early, sizes.late} if sizes.widths is None else {*sizes.widths}
        if self.join != "concatenate" and len(widths) > 1:
            raise ValueError(
                f"codes of width {' and '.join(map(str, sorted(widths)))} cannot be averaged; set "
                "encoders.early and encoders.late to the same width, or join to 'concatenate'"
            )
        return self

    def build(self, n_layers: int, d_model: int, generator: torch.Generator) -> PairHead:
        """See `Unified`."""
        from permafrost.stages.freeze.code_joins import Attended, Average, Concatenate, Weighted
        from permafrost.stages.freeze.encoders import autoencoder_encoders
        from permafrost.stages.freeze.pair_heads import Unified

        encoders = autoencoder_encoders(self.encoders, n_layers, d_model, generator)
        joins = {
            "concatenate": Concatenate,
            "average": Average,
            "weights": lambda: Weighted(n_layers),
            "attention": lambda: Attended(encoders.widths[0], generator),
        }
        return Unified(encoders, joins[self.join]())
