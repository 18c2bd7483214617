"""Sensitivity of readouts to each position of a text, against the attention-product bound.

Source: HTP, section 3.1: the derivative of the last token's state by an input token decays with the number of
attention paths between them, that of the mean is the mean of such derivatives, so it reaches all positions.
Where we differ: the paper bounds, we also measure; the norm is |dy / dv_i|_F / sqrt(d_model); and both are
shown as shares of a text's own tokens, because the bound holds up to a constant.

Runs the backbone, in float32: gradients cannot be had from stored features.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt
from torch import Tensor

from permafrost.stages.corpus.text_sample import TextSample, choose_texts
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.capture import Index
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe, definite_readout, encode
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.sensitivity.gradients import Readout, output_directions, sensitivity
from permafrost.stages.sensitivity.mixing import Mixing, block_mixings, copies_before, path_sums
from permafrost.stages.sensitivity.profile import (
    SensitivityProfile,
    TextProfile,
    combined,
    own_tokens,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress


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


def require_differentiable(recipe: Recipe) -> None:
    """Check that the bound holds under a recipe.

    Raises:
        InputError: it takes heads of another prompt away, or hides tokens.
    """
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


def measure_sensitivity(
    config: SensitivityConfig,
    backbone: Backbone,
    recipe: Recipe,
    max_length: int,
    texts: Sequence[str],
    progress: Progress,
) -> SensitivityProfile:
    """Differentiate the readouts of a sample of the texts by their tokens' embeddings.

    Args:
        config: which readouts, and which texts.
        backbone: in float32.
        recipe: resolved for the backbone.
        max_length: tokens per input at most, beside the config's own bound.
        texts: of the corpus.
        progress: told of every text.

    Raises:
        InputError: a recipe that takes heads of another prompt away, a layer that is not there, or no text
            long enough.
    """
    require_differentiable(recipe)
    layer = config.read_layer(backbone.sizes)
    chosen = choose_texts(texts, config)
    longest = min(max_length, config.max_tokens)
    encoded = encode(recipe, backbone.tokenizer, chosen, longest)
    directions = output_directions(backbone.sizes.d_model, config.n_directions, config.seed)
    profiles: list[TextProfile] = []
    progress.start("sensitivity", len(encoded), "texts")
    try:
        for i in range(len(encoded)):
            text = encoded.take(np.array([i]))
            if len(own_tokens(text, 0)) >= config.n_bins:
                profiles += _profiles(config, backbone, text, recipe, layer, directions)
            progress.advance(1)
    finally:
        progress.finish()
    if not profiles:
        raise InputError(
            f"none of {len(chosen)} texts has {config.n_bins} tokens of its own within {longest}; lower "
            f"n_bins or give longer texts"
        )
    return combined(profiles, config.readouts, config.n_bins)


def _profiles(
    config: SensitivityConfig,
    backbone: Backbone,
    text: Encoded,
    recipe: Recipe,
    layer: Index,
    directions: Tensor,
) -> Iterator[TextProfile]:
    gradients = sensitivity(backbone, text, recipe, layer, config.readouts, directions)
    n_blocks = backbone.sizes.n_layers if layer == "final" else layer
    mixings = block_mixings(backbone, text, recipe, n_blocks)
    sums = path_sums(mixings, config.residual, copies_before(recipe, text, n_blocks))
    own = own_tokens(text, 0)
    for readout in config.readouts:
        bound = _read_out(sums, readout, text, recipe)
        yield TextProfile(readout, gradients[readout][own], bound[own])


def _read_out(sums: Mixing, readout: Readout, text: Encoded, recipe: Recipe) -> np.ndarray:
    """Of the mean, the mean of its tokens' rows (appendix A.3)."""
    if readout == "mean":
        return sums[text.span[0]].mean(axis=0)
    return sums[0 if definite_readout(recipe) == "first" else -1]
