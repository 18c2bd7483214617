"""Values of a prefix, weighted by the attention of a token behind it.

Source: Value Aggregation, appendix E, whose formula has the weights of the query at t + k over a prefix of t
tokens. That query has read the tokens between, and is itself the token that is asked for: what these weights
tell of it, they tell because they know it. Here the weights over the prefix are scaled up to sum to one in
every head, which changes a rank only where the output projection has a bias.

Axes: T tokens of an input, H attention heads, D width of one.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes.inputs import Encoded, TextInput, pack
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.token_prediction.vectors import projection_of, shared_by_heads


def inputs_to(
    encoded: Encoded, texts: Int64[np.ndarray, " n"], ends: Int64[np.ndarray, " n"]
) -> Encoded:
    """Inputs of these texts cut behind so many tokens, so that their last token is the query."""
    cut: list[TextInput] = []
    for i, end in zip(texts.tolist(), ends.tolist(), strict=True):
        ids, span = encoded.token_ids[i][:end], encoded.span[i][:end]
        start, stop = int(encoded.span_start[i]), min(int(encoded.span_end[i]), end)
        cut.append(TextInput(ids, span, start, stop, bool(encoded.truncated[i])))
    return pack(cut)


def vectors_by_later_weights(
    backbone: Backbone, encoded: Encoded, recipe: Recipe, n_prefix: Int64[np.ndarray, " n"]
) -> Iterator[tuple[int, Float[Tensor, "n d_model"]]]:
    """By block 1..L, of every input its first `n_prefix` values weighted by its last token, through the
    output projection, float32."""
    blocks, sizes = range(1, backbone.sizes.n_layers + 1), backbone.sizes
    arrays = [f"{what}/{k}" for what in ("attention_rows", "values") for k in blocks]
    found = forward(backbone, encoded, arrays, recipe)
    lengths = encoded.token_ids.lengths.tolist()
    for k in blocks:
        rows = found[f"attention_rows/{k}"].float().split(lengths)
        values = shared_by_heads(sizes, found[f"values/{k}"].float()).split(lengths)
        weighted: list[Tensor] = []
        for row_TH, value_TX, n in zip(rows, values, n_prefix.tolist(), strict=True):
            share_TH = row_TH[:n] / row_TH[:n].sum(0)
            value_THD = value_TX[:n].unflatten(1, (sizes.n_attn_heads, -1))
            weighted.append(torch.einsum("th,thd->hd", share_TH, value_THD).flatten())
        weight, bias = projection_of(backbone, k)
        yield k, torch.stack(weighted) @ weight + bias
