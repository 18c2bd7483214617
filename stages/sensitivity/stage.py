"""Sensitivity of readouts to each position of a text, against the attention-product bound.

Source: HTP, section 3.1: the derivative of the last token's state by an input token decays with the number of
attention paths between them, that of the mean is the mean of such derivatives, so it reaches all positions.
Where we differ: the paper bounds, we also measure; the norm is |dy / dv_i|_F / sqrt(d_model); and both are
shown as shares of a text's own tokens, because the bound holds up to a constant.

Runs the backbone, in float32: gradients cannot be had from stored features.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.capture import Index
from permafrost.stages.extraction.encoding import encode_for
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe, definite_readout
from permafrost.stages.sensitivity.config import (
    Readout,
    SensitivityConfig,
    require_differentiable,
)
from permafrost.stages.sensitivity.gradients import output_directions, sensitivity
from permafrost.stages.sensitivity.mixing import Mixing, block_mixings, copies_before, path_sums
from permafrost.stages.sensitivity.profile import (
    SensitivityProfile,
    TextProfile,
    combined,
    own_tokens,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress


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
    require_differentiable(recipe, backbone.sizes)
    layer = config.read_layer(backbone.sizes)
    chosen = choose_texts(texts, config)
    longest = min(max_length, config.max_tokens)
    encoded = encode_for(backbone.files, recipe, backbone.tokenizer, chosen, longest)
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
    residuals = [config.residual] * n_blocks
    sums = path_sums(mixings, residuals, copies_before(recipe, text, n_blocks))
    own = own_tokens(text, 0)
    for readout in config.readouts:
        bound = _read_out(sums, readout, text, recipe)
        yield TextProfile(readout, gradients[readout][own], bound[own])


def _read_out(sums: Mixing, readout: Readout, text: Encoded, recipe: Recipe) -> np.ndarray:
    """Of the mean, the mean of its tokens' rows (appendix A.3)."""
    if readout == "mean":
        return sums[text.span[0]].mean(axis=0)
    return sums[0 if definite_readout(recipe) == "first" else -1]
