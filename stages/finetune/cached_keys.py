"""A graph token behind a text, from the text's stored states: one token is computed instead of all.

In a causal decoder nothing that stands behind a token changes it. So the keys and values that the graph token
attends to are those of the text alone: block k makes them, by its own norm, projections and positions, from
what enters it, which is stored as `hidden/k-1`. This is a variant of ours: GT2VEC puts its token first, where
every state depends on it.
Axes: B texts, T positions of the longest, N tokens of all texts, D width of the states, E width of the
embeddings.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from jaxtyping import Bool, Float
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName, Index
from permafrost.stages.extraction.recording import Recorder, recording
from permafrost.stages.finetune.backbone_pass import embedding_width
from permafrost.stages.finetune.token_place import state_array
from permafrost.stages.finetune.wrapping import Forward, wrapped
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged


def read_behind(
    backbone: Backbone, entering: Sequence[Ragged], tokens: Float[Tensor, "b e"]
) -> Float[Tensor, "b d"]:
    """The state of a graph token that stands behind each text, after the last block and the final norm.

    Differentiable by `tokens`. One thread at a time may run the backbone.

    Args:
        backbone: a frozen causal decoder.
        entering: for blocks 1..L what enters them, `[n_tokens, d]` per text: every token of the input.
        tokens: as the embedding layer would give them out, before positions are added; any dtype.

    Returns:
        float32, whatever the backbone's dtype. Equal to `read_states` with the token last, to rounding.

    Raises:
        InputError: the arrays differ in the tokens of a text.
        PermafrostError: a block does not attend as its family promises.
    """
    lengths = entering[0].lengths
    for k, rows in enumerate(entering):
        if not np.array_equal(rows.lengths, lengths):
            text = int(np.flatnonzero(rows.lengths != lengths)[0])
            raise InputError(
                f"hidden/{k} has {rows.lengths[text]} tokens of text {text} of a batch and hidden/0 has "
                f"{lengths[text]}; capture all of them at every token of the same store"
            )
    # On the left, so that windows, which are counted back from the graph token, are the same for all texts.
    n_positions = int(lengths.max())
    starts = torch.from_numpy(n_positions - lengths).to(backbone.device)
    positions = torch.arange(n_positions, device=backbone.device)
    is_token = positions >= starts[:, None]
    cache = transformers.DynamicCache(config=backbone.model.config)
    with torch.no_grad():
        _fill(backbone, cache, entering, is_token, (positions - starts[:, None]).clamp(min=0))
    return _step(backbone, cache, is_token, tokens)


def _fill(
    backbone: Backbone,
    cache: "transformers.DynamicCache",
    entering: Sequence[Ragged],
    is_token: Bool[Tensor, "b t"],
    positions: Tensor,
) -> None:
    """Keys and values of the texts: each block gets what entered it, and ends where it would attend."""
    stopping = _StopsAtAttention()

    def around(block: int, forward: Forward) -> Forward:
        return partial(_keys_only, entering[block], is_token, forward)

    blocks = backbone.family.block_list(backbone.model)
    # Only its shape counts: every block has its own input.
    nothing = torch.zeros(
        (*is_token.shape, embedding_width(backbone)), dtype=backbone.dtype, device=backbone.device
    )
    with recording(stopping), wrapped(blocks, around):
        backbone.model(
            inputs_embeds=nothing,
            attention_mask=is_token.long(),
            position_ids=positions,
            past_key_values=cache,
        )
    if stopping.n_stopped != len(blocks) or cache.get_seq_length() != is_token.shape[1]:
        raise PermafrostError(
            f"{stopping.n_stopped} of the {len(blocks)} blocks of a {quoted(backbone.sizes.model_type)} "
            f"backbone have attended, and {cache.get_seq_length()} of {is_token.shape[1]} keys are there. "
            "This model does not run as its architecture's description in families.py says; use graph_token: "
            "first"
        )


def _step(
    backbone: Backbone,
    cache: "transformers.DynamicCache",
    is_token: Bool[Tensor, "b t"],
    tokens: Float[Tensor, "b e"],
) -> Float[Tensor, "b d"]:
    """One token behind each text, through the whole backbone."""
    name = ArrayName.parse(state_array("last", backbone.sizes))
    at = torch.zeros(len(tokens), dtype=torch.int64, device=backbone.device)
    batch = Batch(
        token_ids=at[:, None],
        is_token=None,
        flat=None,
        span=torch.ones_like(at, dtype=torch.bool)[:, None],
        first=at,
        last=at,
        readout=at,
        placeholders=None,
        copies=None,
    )
    recorder = Recorder([name], batch, None if name.index == "final" else name.index)
    with recording(recorder):
        backbone.model(
            inputs_embeds=tokens[:, None].to(backbone.dtype),
            attention_mask=torch.cat([is_token, torch.ones_like(is_token[:, :1])], dim=1).long(),
            position_ids=is_token.sum(1, keepdim=True),
            past_key_values=cache,
        )
    recorder.require_complete(backbone.sizes.model_type)
    return recorder.rows[name.text].float()


class _AttentionReachedError(Exception):
    """Leaves a block that has its keys and values; never seen outside `_keys_only`."""


class _StopsAtAttention(Recorder):
    """Records nothing, and ends every block where it would attend."""

    def __init__(self) -> None:
        self.n_stopped = 0

    def hidden(self, index: Index, states_BTD: Tensor) -> None:
        """Not what a text's states are."""

    def attention(self, block: int, *args: Any, **kwargs: Any) -> None:
        """By now the block has put keys and values into the cache."""
        self.n_stopped += 1
        raise _AttentionReachedError


def _keys_only(
    rows: Ragged,
    is_token: Bool[Tensor, "b t"],
    forward: Forward,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """A block's forward, for its keys and values."""
    given: Tensor = args[0] if args else kwargs["hidden_states"]
    states = given.new_zeros((*is_token.shape, rows.data.shape[1]))
    states[is_token] = torch.from_numpy(rows.data).to(states)
    try:
        if args:
            forward(states, *args[1:], **kwargs)
        else:
            forward(**{**kwargs, "hidden_states": states})
    except _AttentionReachedError:
        pass
    # What the next block is given does not matter either.
    return given
