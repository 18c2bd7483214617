"""Which readouts are differentiated, of which texts, and how exactly."""

from typing import Literal

from pydantic import Field, PositiveInt

from permafrost.stages.corpus.text_sample import TextSample
from permafrost.stages.extraction.capture import Index
from permafrost.stages.extraction.recipes.recipe import Recipe, definite_readout
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

Readout = Literal["readout", "mean"]
"""`readout`: the state of the recipe's readout token, the last one in a decoder. `mean`: over its span."""


class SensitivityConfig(TextSample):
    """Which readouts, of which texts, and how exactly."""

    readouts: tuple[Readout, ...] = Field(default=("readout", "mean"), min_length=1)
    """Which vectors of a text are differentiated."""
    layer: Literal["last", "final"] | PositiveInt = "last"
    """Hidden states that are read out: a block, `final`, or `last` (`final` where there is one, else the last
    block)."""
    n_directions: PositiveInt | None = 16
    """Random directions of the output, by `seed`; None: all, which is exact and takes d_model / 16 times as
    long."""
    residual: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the residual stream against attention in the bound; what is not known of HTP's constants."""
    n_bins: PositiveInt = 10
    """Parts of a text; texts of fewer tokens are left out."""
    max_tokens: PositiveInt = 128
    """Longer inputs are cut; the bound holds a matrix of this size squared."""

    def read_layer(self, sizes: BackboneSizes) -> Index:
        """The layer of a backbone of these sizes.

        Raises:
            InputError: a layer that it does not have.
        """
        if self.layer == "last":
            return "final" if sizes.has_final_norm else sizes.n_layers
        if self.layer == "final" and not sizes.has_final_norm:
            raise InputError(
                f"layer is 'final', but this {sizes.model_type} backbone has no norm after its last block; "
                f"use {sizes.n_layers}"
            )
        if self.layer != "final" and self.layer > sizes.n_layers:
            raise InputError(
                f"layer is {self.layer}, but this {sizes.model_type} backbone has blocks 1 to "
                f"{sizes.n_layers}; choose one of these, final or last"
            )
        return self.layer


def require_differentiable(recipe: Recipe, sizes: BackboneSizes) -> None:
    """Check that the bound holds under a recipe, resolved for a backbone of these sizes.

    Raises:
        InputError: it takes heads of another prompt away, hides tokens, or reads a decoder's first token.
    """
    if sizes.is_decoder and definite_readout(recipe) == "first":
        raise InputError(
            f"the recipe {recipe.name()} reads the first token, which in {sizes.model_type}, a decoder, "
            "depends on no other: there is nothing to differentiate; leave 'readout' out"
        )
    if recipe.masks_attention:
        raise InputError(
            f"the recipe {recipe.name()} hides tokens from others, which gradients are not taken through; "
            "use another recipe"
        )
    if recipe.intervention is not None:
        raise InputError(
            f"the recipe {recipe.name()} replaces the heads of one block, which the attention-product bound "
            f"knows nothing of; use another recipe"
        )
