"""Run one batch through a frozen backbone, and return the requested arrays."""

from collections.abc import Sequence

import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch, pad
from permafrost.stages.extraction.capture import ArrayName, deepest_block
from permafrost.stages.extraction.contrast import Auxiliary, Contrast, contrasting
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe, definite_readout
from permafrost.stages.extraction.recording import Keep, Recorder, recording
from permafrost.stages.extraction.rewiring import Rewired, rewiring
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.quoting import quoted


def forward(
    backbone: Backbone,
    encoded: Encoded,
    arrays: Sequence[str],
    recipe: Recipe,
    keep: Keep = lambda _, rows: rows,
) -> dict[str, Tensor]:
    """Run one padded batch up to the deepest block that `arrays` need.

    Hidden states are the residual stream after a block and before anything that a rewiring copies for
    the next one.

    Args:
        backbone: from `load_backbone`.
        encoded: one text or more, encoded under `recipe`.
        arrays: names as in the store, e.g. `hidden/3`, `attention_rows/2`, `pooled/values_mean/6`.
        recipe: resolved for the backbone; says which token is the readout and what is changed in the
            pass.
        keep: called with the rows of each array as soon as they are computed; returns what to keep.

    Returns:
        Per name `[n_tokens, width]`, tokens of all texts one after the other without padding, or
        `[n_texts, width]` for pooled arrays, on the backbone's device. In the backbone's dtype, except
        attention rows and means, which are float32. With `keep`, whatever it returned.

    Raises:
        PermafrostError: a tensor was not seen exactly once during the pass, as its family promises.
    """
    names = [ArrayName.parse(a) for a in arrays]
    sizes = backbone.sizes
    batch = padded_batch(backbone, encoded, recipe)
    runs_whole = any(name.index == "final" for name in names)
    deepest = deepest_block(arrays, sizes)
    recorder = Recorder(names, batch, None if runs_whole else deepest, keep)
    rewired = None if recipe.rewiring is None else Rewired(recipe.rewiring, batch)
    contrast = _contrast(backbone, encoded, batch, recipe, deepest)
    with recording(recorder), rewiring(rewired), contrasting(contrast):
        run_batch(backbone, batch)
    recorder.require_complete(sizes.model_type)
    if rewired is not None:
        rewired.require_complete(deepest, sizes.model_type)
    if contrast is not None:
        contrast.require_complete(sizes.model_type)
    return {name: recorder.rows[name] for name in arrays}


def padded_batch(backbone: Backbone, encoded: Encoded, recipe: Recipe) -> Batch:
    """Encoded texts as one batch on the backbone's device, padded on the right."""
    # RoBERTa counts positions over tokens that are not padding, so there the id has to be the right one.
    pad_token = backbone.family.padding_index(backbone.model.config) or 0
    batch = pad(encoded, definite_readout(recipe), pad_token, backbone.device)
    has_inserts = batch.placeholders is not None or batch.copies is not None
    assert recipe.rewiring is not None or not has_inserts, "placeholders need a rewiring"
    return batch


def _contrast(
    backbone: Backbone, encoded: Encoded, batch: Batch, recipe: Recipe, deepest: int
) -> Contrast | None:
    """Run the auxiliary prompts, unless the pass ends before the block that they change."""
    intervention = recipe.intervention
    if intervention is None or deepest < intervention.block:
        return None
    assert encoded.auxiliary is not None, "contrastive prompting needs an auxiliary prompt"
    assert len(encoded.auxiliary) == len(encoded), "not every text has an auxiliary prompt"
    prompts = padded_batch(backbone, encoded.auxiliary, recipe)
    auxiliary = Auxiliary(intervention.block, prompts)
    with contrasting(auxiliary):
        run_batch(backbone, prompts)
    if auxiliary.heads is None:
        raise PermafrostError(
            f"the output projection of block {intervention.block} of a {quoted(backbone.sizes.model_type)} "
            f"backbone did not run for the auxiliary prompt; nothing of this batch was kept. This model "
            f"does not run as its architecture's description in families.py says"
        )
    return Contrast(intervention, batch, auxiliary.heads)


def _require_within_window(backbone: Backbone, batch: Batch) -> None:
    """Raises: InputError: blocks with a sliding window would see more than they do."""
    window, longest = getattr(backbone.model.config, "sliding_window", None), batch.span.shape[1]
    if window is not None and longest > window:
        raise InputError(
            f"an input has {longest} tokens and a recipe that hides some of them, but blocks of this "
            f"{backbone.sizes.model_type} backbone see {window} at a time; set max_length to at most {window}"
        )


def run_batch(backbone: Backbone, batch: Batch) -> None:
    """One forward pass without gradients; what is recorded or altered is up to the surrounding contexts."""
    # In a causal model no token sees the padding to its right, and without a mask the kernel is faster.
    mask = None if backbone.family.is_decoder else batch.is_token
    if batch.attends is not None:
        _run_masked(backbone, batch, batch.attends)
        return
    with torch.no_grad():
        backbone.model(input_ids=batch.token_ids, attention_mask=mask)


def _run_masked(backbone: Backbone, batch: Batch, attends: Tensor) -> None:
    _require_within_window(backbone, batch)
    # OPT would count positions over the mask.
    positions = torch.arange(batch.span.shape[1], device=backbone.device)[None]
    with torch.no_grad():
        # A mask of four axes is used by every block as it is.
        backbone.model(input_ids=batch.token_ids, attention_mask=attends, position_ids=positions)
