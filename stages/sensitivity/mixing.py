"""The attention-product bound: how much of each position arrives at a readout by attention alone.

Source: HTP, lemma A.2 and appendix A.1. With attention weights a and a residual stream of weight b against
them, a block mixes positions by M = (a + b I) / (1 + b), whose rows sum to 1, and the derivative of output j
by input i is at most a constant times the sum over all paths from i to j, which is element (j, i) of the
product M(L-1) ... M(0). The constant holds the weights, norms and feed-forward layers, which the lemma bounds
without looking at them, so the product says how dependence is distributed, not how large it is. The paper's
attention has one head; here weights are averaged over the heads. Copies of a rewiring are one more mixing.

Axes: B texts, H attention heads, G key-value heads, T positions, D width of a head.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.forward import padded_batch, run_batch
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recording import Recorder, recording
from permafrost.stages.extraction.rewiring import Rewired, rewiring

Mixing = Float64[np.ndarray, "t t"]
"""Row j: what output position j takes of each input position; rows sum to 1."""


class _WeightsRecorder(Recorder):
    """Keeps every block's attention weights, averaged over its heads."""

    def __init__(self, batch: Batch, n_blocks: int) -> None:
        super().__init__([ArrayName("hidden", None, n_blocks)], batch, n_blocks)
        self.weights: dict[int, NDArray[np.float64]] = {}

    def attention(
        self,
        block: int,
        query: Float[Tensor, "b h t d"],
        key: Float[Tensor, "b g t d"],
        value: Float[Tensor, "b g t d_v"],
        mask: Bool[Tensor, "b _ t t"] | None,
        *,
        scaling: float,
        causal: bool,
        softcap: float | None,
        position_bias: Float[Tensor, "b h t t"] | None,
    ) -> None:
        """Block `block` is about to attend."""
        weights = attention_weights(
            query,
            key,
            mask,
            scaling=scaling,
            causal=causal,
            softcap=softcap,
            position_bias=position_bias,
        )
        self.weights[block] = weights[0].double().mean(0).cpu().numpy()


def attention_weights(
    query: Float[Tensor, "b h t d"],
    key: Float[Tensor, "b g t d"],
    mask: Bool[Tensor, "b _ t t"] | None,
    *,
    scaling: float,
    causal: bool,
    softcap: float | None,
    position_bias: Float[Tensor, "b h t t"] | None,
) -> Float[Tensor, "b h t t"]:
    """Softmax weights of every query over every key, float32: for short inputs, as it holds T x T numbers."""
    key_BHTD = key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits_BHTT = query.float() @ key_BHTD.mT * scaling
    if softcap is not None:
        logits_BHTT = torch.tanh(logits_BHTT / softcap) * softcap
    if position_bias is not None:
        logits_BHTT = logits_BHTT + position_bias.float()
    length = query.shape[2]
    if mask is not None:
        seen = mask
    elif causal:
        seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    else:
        return logits_BHTT.softmax(-1)
    return logits_BHTT.masked_fill(~seen, float("-inf")).softmax(-1)


def block_mixings(
    backbone: Backbone, encoded: Encoded, recipe: Recipe, n_blocks: int
) -> list[Mixing]:
    """Attention weights of blocks 1..n_blocks on one text, averaged over heads."""
    recorder = recorded(backbone, encoded, recipe, lambda batch: _WeightsRecorder(batch, n_blocks))
    return [recorder.weights[block] for block in range(1, n_blocks + 1)]


AnyRecorder = TypeVar("AnyRecorder", bound=Recorder)


def recorded(
    backbone: Backbone,
    encoded: Encoded,
    recipe: Recipe,
    make: Callable[[Batch], AnyRecorder],
) -> AnyRecorder:
    """Run one text under its recipe; the recorder, made for its batch, with what it kept."""
    assert len(encoded) == 1, "one text at a time"
    batch = padded_batch(backbone, encoded, recipe)
    recorder = make(batch)
    rewired = None if recipe.rewiring is None else Rewired(recipe.rewiring, batch)
    with recording(recorder), rewiring(rewired):
        run_batch(backbone, batch)
    recorder.require_complete(backbone.sizes.model_type)
    return recorder


def path_sums(
    mixings: Sequence[Mixing],
    residuals: Sequence[float],
    copies: Sequence[NDArray[np.int64] | None],
) -> Mixing:
    """Sum over all paths of the products along them: M(L-1) C(L-1) ... M(0) C(0).

    Args:
        mixings: attention weights of each block, rows sum to 1.
        residuals: weight b of the residual stream in each block.
        copies: before each block, rows of [source, target]: the state of the source is written over that of
            the target; None for none.
    """
    product = np.eye(len(mixings[0]))
    for attention, residual, pairs in zip(mixings, residuals, copies, strict=True):
        if pairs is not None:
            # All copies are made at once, from the states before any of them.
            product[pairs[:, 1]] = product[pairs[:, 0]]
        product = (attention @ product + residual * product) / (1 + residual)
    return product


def copies_before(
    recipe: Recipe, encoded: Encoded, n_blocks: int
) -> list[NDArray[np.int64] | None]:
    """What a rewiring copies before each block, for one text."""
    rewired = recipe.rewiring
    if rewired is None or encoded.copies is None:
        return [None] * n_blocks
    pairs = encoded.copies[0]
    return [pairs if rewired.start <= k < rewired.stop else None for k in range(n_blocks)]
