"""Derivatives of a text's vector by its input embeddings, by autograd.

Axes: C copies of one text, T positions, D columns.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName, Index, deepest_block
from permafrost.stages.extraction.forward import padded_batch
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recording import Recorder, recording
from permafrost.stages.extraction.rewiring import Rewired, rewiring
from permafrost.stages.sensitivity.config import Readout

BATCH_TOKENS = 2048
"""Positions of all copies that are differentiated at a time; the result does not depend on it beyond
rounding."""


def output_directions(d_model: int, n: int | None, seed: int) -> Float[Tensor, "n_directions d"]:
    """Directions in which outputs are differentiated, of length sqrt(D).

    With J the derivative, the squared length of the gradient in such a direction is |J|_F^2 on average:
    exactly over all coordinate directions (`n` is None), in expectation over `n` vectors of random signs
    (Hutchinson).
    """
    if n is None:
        return torch.eye(d_model) * d_model**0.5
    signs = np.random.default_rng(seed).integers(0, 2, (n, d_model)) * 2.0 - 1.0
    return torch.from_numpy(signs).float()


def sensitivity(
    backbone: Backbone,
    encoded: Encoded,
    recipe: Recipe,
    layer: Index,
    readouts: Sequence[Readout],
    directions: Float[Tensor, "n_directions d"],
) -> dict[Readout, Float64[np.ndarray, " t"]]:
    """Root mean square singular value of the derivative of a readout by each position's input embedding.

    That is |dy / dv_i|_F / sqrt(D), at most the spectral norm that HTP bounds, and 1 for y = v_i. The input
    embedding is what the embedding layer gives out, placeholders included, before positions are added.

    Args:
        backbone: in float32.
        encoded: one text.
        recipe: resolved; whatever it copies between tokens is differentiated through.
        layer: of the hidden states that are read out.
        readouts: what is differentiated.
        directions: from `output_directions`.
    """
    assert len(encoded) == 1, "one text at a time"
    length = int(encoded.token_ids.lengths[0])
    names: dict[Readout, ArrayName] = {r: ArrayName("hidden", r, layer) for r in readouts}
    squares: dict[Readout, Tensor] = {
        readout: torch.zeros(length, dtype=torch.float64) for readout in readouts
    }
    for some in directions.to(backbone.device).split(max(BATCH_TOKENS // length, 1)):
        copies = encoded.take(np.zeros(len(some), dtype=np.int64))
        inputs, outputs = differentiable(backbone, copies, recipe, list(names.values()))
        for k, readout in enumerate(readouts):
            product = (outputs[names[readout].text] * some).sum()
            (gradient_CTD,) = torch.autograd.grad(
                product, inputs, retain_graph=k + 1 < len(readouts)
            )
            squares[readout] += gradient_CTD.double().square().sum((0, 2)).cpu()
    scale = len(directions) * directions.shape[1]
    return {readout: (total / scale).sqrt().numpy() for readout, total in squares.items()}


def differentiable(
    backbone: Backbone, encoded: Encoded, recipe: Recipe, names: Sequence[ArrayName]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Input embeddings `[C, T, D]` as leaves of a graph, and rows `[C, D]` made of them.

    Args:
        backbone: in float32.
        encoded: copies of one text.
        recipe: resolved.
        names: of pooled hidden states, computed as what is stored under these names.
    """
    batch = padded_batch(backbone, encoded, recipe)
    assert batch.is_token is None, "copies of one text have one length"
    deepest = deepest_block([name.text for name in names], backbone.sizes)
    runs_whole = any(name.index == "final" for name in names)
    recorder = Recorder(names, batch, None if runs_whole else deepest)
    rewired = None if recipe.rewiring is None else Rewired(recipe.rewiring, batch)
    with recording(recorder), rewiring(rewired), torch.enable_grad():
        inputs = _embedded(backbone, batch).detach().requires_grad_(True)
        backbone.model(inputs_embeds=inputs)
    recorder.require_complete(backbone.sizes.model_type)
    if rewired is not None:
        rewired.require_complete(deepest, backbone.sizes.model_type)
    return inputs, dict(recorder.rows)


def _embedded(backbone: Backbone, batch: Batch) -> Tensor:
    # Through the layer itself, whose hook puts the embeddings of placeholders in.
    return cast(nn.Module, backbone.model.get_input_embeddings())(batch.token_ids)
