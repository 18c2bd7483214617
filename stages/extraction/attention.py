"""The attention function that backbones run with: torch's fused kernel, observed.

transformers calls a registered function in place of its own. Ours shows queries, keys, values and mask
to the recorder, if there is one, and then attends as `sdpa` does, so no [T, T] matrix of weights exists.
Where a gradient passes under autocast on a CPU it attends in float32: torch's kernel for the way back takes
three to four times as long in bfloat16. Capped logits are computed without it, as they come. A bias by
position is handed on with the mask, as one [T, T] matrix a head: the architecture has made it already.
Axes: B texts, H attention heads, G key-value heads, T positions, Q the last of them (all without a cache of
keys), D width of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import transformers
from jaxtyping import Bool, Float
from torch import Tensor, nn

from permafrost.stages.extraction.kernels import softcapped_attention
from permafrost.stages.extraction.recording import current_block

ATTENTION = "permafrost"
"""Name under which the function is registered with transformers."""


_held: ContextVar[bool] = ContextVar("permafrost_attention_held", default=False)


@contextmanager
def holding_attention() -> Iterator[None]:
    """Differentiate passes in the `with` body as if attention weights did not depend on the input."""
    token = _held.set(True)
    try:
        yield
    finally:
        _held.reset(token)


def register_attention() -> None:
    """Register `attn_implementation="permafrost"` with transformers; safe to call more than once.

    The mask function has to be registered too. Without it transformers silently passes no mask at all:
    padding is attended to and sliding windows do not slide.
    """
    # Imported here: transformers' models take seconds, and whoever only plans runs none.
    from transformers.masking_utils import sdpa_mask

    transformers.AttentionInterface.register(ATTENTION, observed_attention)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def observed_attention(
    module: nn.Module,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g t d"],
    value: Float[Tensor, "b g t d_v"],
    attention_mask: Bool[Tensor, "b _ q t"] | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Float[Tensor, "b h q t"] | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "b q h d_v"], None]:
    """Attend as transformers' sdpa does, after passing the inputs to the recorder, if there is one.

    Args:
        module: the attention module of a block.
        query: after rotary embedding and norms.
        key: the same.
        value: the value projection's output.
        attention_mask: True = attend; None stands for causal or full attention without padding.
        dropout: passed on; 0 for a frozen backbone.
        scaling: factor on the logits; None for 1 / sqrt(D).
        is_causal: None for the module's own `is_causal`.
        position_bias: added to the scaled logits; not with `softcap`.
        kwargs: `softcap` for capped logits; the rest is passed on.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    softcap = kwargs.pop("softcap", None)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if (current := current_block(module)) is not None:
        recorder, block = current
        recorder.attention(
            block,
            query,
            key,
            value,
            attention_mask,
            scaling=factor,
            causal=causal,
            softcap=softcap,
            position_bias=position_bias,
        )
    if _held.get():
        query, key = query.detach(), key.detach()
    if softcap is not None:
        assert position_bias is None, "no family caps its logits and has a bias on them"
        output = softcapped_attention(
            query, key, value, attention_mask, scaling=factor, causal=causal, softcap=softcap
        )
        return output, None
    dtype = query.dtype
    in_full = _slow_on_the_way_back(query, key, value)
    if in_full:
        query, key, value = query.float(), key.float(), value.float()
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.float()
    if position_bias is not None:
        # It is looked up in a table, which may be in another dtype than what is multiplied here.
        position_bias = position_bias.to(query.dtype)
    with torch.autocast("cpu", enabled=False) if in_full else nullcontext():
        output, _ = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=factor,
            is_causal=is_causal,
            position_bias=position_bias,
            **kwargs,
        )
    return output.to(dtype) if in_full else output, None


def _slow_on_the_way_back(*inputs: Tensor) -> bool:
    is_low = inputs[0].device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return is_low and torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
