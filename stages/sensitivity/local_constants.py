"""The constants of HTP's bound, as they are on one text.

Source: HTP, appendix A. There norms have Lipschitz constants 1/b1, 1/b2 and 1/b3 and the feed-forward layers
s, and the attention has one head without value and output projections. Here a block's heads have the
spectral norm of their two projections together, norms and feed-forward layers the largest spectral norm of
their derivative at the text's own states, so that with the attention weights held constant the bound holds.

Axes: T positions, H attention heads, G heads of values, D columns, V width of a value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recording import Recorder
from permafrost.stages.sensitivity.mixing import Mixing, attention_weights, copies_before, recorded


@dataclass(frozen=True)
class BlockConstants:
    """One block on one text."""

    mixing: Mixing
    """Attention weights, averaged over heads in proportion to their norms."""
    strength: float
    """Norms of all heads together, times that of the norm before them: the weight of attention where the
    residual stream has 1."""
    growth: float
    """1 + the norm of the feed-forward layers and the norm before them."""


@dataclass(frozen=True)
class TextConstants:
    """All blocks on one text."""

    blocks: tuple[BlockConstants, ...]
    final_norm: float
    """Norm of the derivative of the final norm; 1 if there is none."""

    def constant(self, n_blocks: int) -> float:
        """K of the paper after `n_blocks` blocks, before the final norm."""
        factors = [b.growth * (1 + b.strength) for b in self.blocks[:n_blocks]]
        return float(np.prod(factors))


def spectral_norms(matrices: Float[Tensor, "n o i"]) -> Float64[np.ndarray, " n"]:
    """Largest singular value of each matrix."""
    wide = matrices.double()
    # Eigenvalues of the product take a fraction of the time of singular values.
    return torch.linalg.eigvalsh(wide @ wide.mT)[..., -1].clamp_min(0).sqrt().cpu().numpy()


def text_constants(backbone: Backbone, encoded: Encoded, recipe: Recipe) -> TextConstants:
    """The constants of every block on one text.

    Args:
        backbone: in float32, of an architecture in `PRE_NORM`.
        encoded: one text.
        recipe: resolved.
    """
    n_blocks = backbone.sizes.n_layers
    seen = recorded(backbone, encoded, recipe, lambda batch: _HeadsRecorder(batch, n_blocks))
    copies = copies_before(recipe, encoded, n_blocks)
    blocks: list[BlockConstants] = []
    for k in range(1, n_blocks + 1):
        states_TD = seen.rows[f"hidden/{k - 1}"]
        if (pairs := copies[k - 1]) is not None:
            source, target = torch.from_numpy(pairs).to(states_TD.device).T
            states_TD = states_TD.index_copy(0, target, states_TD[source])
        blocks.append(_block(backbone, k, states_TD, seen))
    norm = backbone.family.norm_module(backbone.model)
    final = 1.0
    if norm is not None and backbone.sizes.has_final_norm:
        final = _largest(norm, seen.rows[f"hidden/{n_blocks}"])
    return TextConstants(tuple(blocks), final)


class _HeadsRecorder(Recorder):
    """Keeps every block's attention weights and values by head."""

    def __init__(self, batch: Batch, n_blocks: int) -> None:
        names = [ArrayName("hidden", None, k) for k in range(n_blocks + 1)]
        super().__init__(names, batch, n_blocks)
        self.weights: dict[int, Float[Tensor, "h t t"]] = {}
        self.values: dict[int, Float[Tensor, "g t v"]] = {}

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
        found = attention_weights(
            query,
            key,
            mask,
            scaling=scaling,
            causal=causal,
            softcap=softcap,
            position_bias=position_bias,
        )
        self.weights[block], self.values[block] = found[0], value[0]


def _block(backbone: Backbone, k: int, states_TD: Tensor, seen: _HeadsRecorder) -> BlockConstants:
    module = backbone.family.block_list(backbone.model)[k - 1]
    first_norm, second_norm, feed_forward = (module.get_submodule(p) for p in _parts(backbone))
    weight, bias = (
        None if x is None else torch.from_numpy(x).to(states_TD.device)
        for x in output_projection(backbone, k)
    )
    assert weight is not None
    weights_HTT, values_GTV = seen.weights[k], seen.values[k]
    n_heads = len(weights_HTT)
    values_HTV = values_GTV.repeat_interleave(n_heads // len(values_GTV), dim=0)
    attended = (weights_HTT @ values_HTV).transpose(0, 1).flatten(1) @ weight
    between_TD = states_TD + attended + (0 if bias is None else bias)
    norms_H = _head_norms(backbone, module, weight, n_heads)
    mixing = torch.einsum("h,htu->tu", norms_H / norms_H.sum(), weights_HTT.double())
    return BlockConstants(
        mixing.cpu().numpy(),
        _largest(first_norm, states_TD) * float(norms_H.sum()),
        1 + _largest(lambda x: feed_forward(second_norm(x)), between_TD),
    )


def _parts(backbone: Backbone) -> tuple[str, str, str]:
    """Norm before the attention, norm before the feed-forward layers, and these, from a block."""
    if backbone.sizes.model_type == "gpt2":
        return "ln_1", "ln_2", "mlp"
    return "input_layernorm", "post_attention_layernorm", "mlp"


def _head_norms(
    backbone: Backbone, block: nn.Module, output: Float[Tensor, "e d"], n_heads: int
) -> Float64[Tensor, " h"]:
    """Spectral norm of each head's value and output projections together."""
    if backbone.sizes.model_type == "gpt2":
        fused = cast(Tensor, block.get_submodule("attn.c_attn").weight)
        values_DE = fused[:, -backbone.sizes.d_value :]
    else:
        values_DE = cast(Tensor, block.get_submodule("self_attn.v_proj").weight).T
    by_group = values_DE.double().unflatten(1, (backbone.sizes.n_kv_heads, -1)).transpose(0, 1)
    in_HDV = by_group.repeat_interleave(n_heads // len(by_group), dim=0)
    out_HVD = output.double().unflatten(0, (n_heads, -1))
    # The same norm, of matrices as wide as a head.
    left, right = torch.linalg.qr(in_HDV).R, torch.linalg.qr(out_HVD.mT).R
    return torch.linalg.matrix_norm(left @ right.mT, ord=2)


def _largest(function: Callable[[Tensor], Tensor], states_TD: Tensor) -> float:
    """Largest spectral norm of a function's derivative at these states, one by one."""
    derivative = torch.func.jacrev(function)
    found = [spectral_norms(derivative(state)[None])[0] for state in states_TD]
    return float(max(found))
