"""One batch through a frozen backbone, and what was asked for of it."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from stages.extraction.backbone import Backbone
from stages.extraction.batch import pad
from stages.extraction.capture import ArrayName, deepest_block
from stages.extraction.recording import Recorder, recording
from storage.ragged import Ragged


def forward(
    backbone: Backbone,
    token_ids: Ragged,
    span: Ragged,
    arrays: Sequence[str],
    readout: Literal["first", "last"],
) -> dict[str, Tensor]:
    """Run one padded batch up to the deepest block that `arrays` need.

    Args:
        backbone: from `load_backbone`.
        token_ids: int32, one text or more.
        span: bool, the tokens that `mean` runs over.
        arrays: names as in the store, e.g. `hidden/3`, `attention_rows/2`, `pooled/values_mean/6`.
        readout: which token's attention row and state are the readout.

    Returns:
        Per name `[n_tokens, width]`, tokens of all texts one after the other without padding, or
        `[n_texts, width]` for pooled arrays, on the backbone's device. In the backbone's dtype, except
        attention rows and means, which are float32.

    Raises:
        PermafrostError: the model did not pass a tensor that its family promises exactly once.
    """
    names = [ArrayName.parse(a) for a in arrays]
    sizes, family, model = backbone.sizes, backbone.family, backbone.model
    # RoBERTa counts positions over tokens that are not padding, so there the id has to be the right one.
    pad_token = int(model.config.pad_token_id or 0) if family.positions_after_padding else 0
    batch = pad(token_ids, span, readout, pad_token, backbone.device)
    runs_whole = any(name.index == "final" for name in names)
    recorder = Recorder(names, batch, None if runs_whole else deepest_block(arrays, sizes))
    # In a causal model no token sees the padding to its right, and without a mask the kernel is faster.
    mask = None if family.is_decoder else batch.is_token
    with torch.no_grad(), recording(recorder):
        model(input_ids=batch.token_ids, attention_mask=mask)
    recorder.require_complete(sizes.model_type)
    return {name: recorder.rows[name] for name in arrays}
