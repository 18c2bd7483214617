"""Attention that torch's fused kernels do not offer: the weights of one query, and capped logits.

Axes: B texts, Q query positions, K key positions, H attention heads, G key-value heads (H / G queries
share one), D width of a head. Masks are boolean, True = attend, as transformers makes them for sdpa.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Most logits that `softcapped_attention` holds at a time: 64 MB in float32."""


def attention_row(
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g k d"],
    mask: Bool[Tensor, "b _ q k"] | None,
    at: Int64[Tensor, " b"],
    *,
    scaling: float,
    causal: bool,
    softcap: float | None = None,
    position_bias: Float[Tensor, "b h q k"] | None = None,
) -> Float[Tensor, "b k h"]:
    """Softmax weights that the query at position `at` gives every key, float32, in O(K * D).

    Logits and softmax are float32 whatever the inputs are. transformers' eager attention multiplies in
    the compute dtype and only then converts to float32, so the two differ by that rounding.
    """
    n_texts, n_heads = query.shape[:2]
    text_B = torch.arange(n_texts, device=query.device)
    grouped_BGRD = query[text_B, :, at].float().unflatten(1, (key.shape[1], -1))
    logits_BGRK = _logits(grouped_BGRD * scaling, key.float())
    if softcap is not None:
        logits_BGRK = torch.tanh(logits_BGRK / softcap) * softcap
    if position_bias is not None:
        bias_BHK = position_bias[text_B, :, at].float()
        logits_BGRK = logits_BGRK + bias_BHK.unflatten(1, (key.shape[1], -1))
    if mask is not None:
        seen_BK = mask[text_B, 0, at]
    elif causal:
        seen_BK = torch.arange(key.shape[2], device=key.device) <= at[:, None]
    else:
        seen_BK = None
    if seen_BK is not None:
        logits_BGRK = logits_BGRK.masked_fill(~seen_BK[:, None, None], float("-inf"))
    return logits_BGRK.softmax(-1).reshape(n_texts, n_heads, -1).mT


def _logits(
    query: Float[Tensor, "b g r d"], key: Float[Tensor, "b g k d"]
) -> Float[Tensor, "b g r k"]:
    """Dot products of each head's one query with its keys."""
    keys_BKGD = key.transpose(1, 2)
    if not keys_BKGD.is_contiguous():
        return query @ key.mT
    # Without rotary embedding the keys are as projected, all heads side by side. Splitting them would copy
    # every key and run one tiny product per head; a block-diagonal query needs a single product (5x faster
    # at 12 heads of width 32).
    n_texts, n_groups, n_each, width = query.shape
    blocks_BGDGR = query.new_zeros(n_texts, n_groups, width, n_groups, n_each)
    group_G = torch.arange(n_groups, device=query.device)
    blocks_BGDGR[:, group_G, :, group_G] = query.permute(1, 0, 3, 2)
    logits_BKH = keys_BKGD.flatten(2) @ blocks_BGDGR.reshape(
        n_texts, n_groups * width, n_groups * n_each
    )
    return logits_BKH.mT.unflatten(1, (n_groups, n_each))


def softcapped_attention(
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d_v"],
    mask: Bool[Tensor, "b _ q k"] | None,
    *,
    scaling: float,
    causal: bool,
    softcap: float,
) -> Float[Tensor, "b q h d_v"]:
    """Attention with logits `softcap * tanh(logits / softcap)` (Gemma 2, arXiv:2408.00118, section 2).

    The queries are those of the last positions; keys before theirs come from a cache. torch's fused kernel
    cannot cap logits. Queries are processed in chunks, so that a full [Q, K] matrix never exists; the chunk
    size affects the result only by float rounding.
    """
    n_texts, n_heads, length, _ = query.shape
    n_groups, n_all = key.shape[1:3]
    n_before = n_all - length
    output = query.new_empty(n_texts, length, n_heads, value.shape[-1])
    step = max(CHUNK_ELEMENTS // (n_texts * n_heads * n_all), 1)
    position = torch.arange(n_all, device=query.device)
    for start in range(0, length, step):
        stop = min(start + step, length)
        # A causal query never sees a later key, whatever the mask says.
        n_keys = n_before + stop if causal else n_all
        chunk = query[:, :, start:stop].reshape(n_texts, n_groups, -1, query.shape[-1])
        logits = ((chunk @ key[:, :, :n_keys].mT) * scaling).float()
        logits = (torch.tanh(logits / softcap) * softcap).unflatten(2, (-1, stop - start))
        if mask is not None:
            logits.masked_fill_(~mask[:, :, None, start:stop, :n_keys], float("-inf"))
        elif causal:
            later = position[:n_keys] > position[n_before + start : n_before + stop, None]
            logits.masked_fill_(later, float("-inf"))
        weights = logits.softmax(-1).to(value.dtype).flatten(2, 3)
        heads = (weights @ value[:, :, :n_keys]).unflatten(2, (-1, stop - start)).flatten(1, 2)
        output[:, start:stop] = heads.transpose(1, 2)
    return output
