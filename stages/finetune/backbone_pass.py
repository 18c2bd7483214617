"""Texts through the backbone with one token more: a vector of our own in place of a word's embedding.

Source: GT2VEC, 2.2: `[graph token, <s>, tokens, </s>]`, read at the last token. The weights are constants; a
gradient flows to the graph token, and to adapters where the backbone has some.
Axes: B texts, T positions of the longest input, D width of the states, E width of the embeddings (OPT-350m's
are narrower than its states).
"""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.forward import padded_batch
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recording import Recorder, recording
from permafrost.stages.finetune.token_place import ReadAt, TokenPlace, state_array


def embedding_width(backbone: Backbone) -> int:
    """E: the width of a graph token."""
    return int(_embedding(backbone).embedding_dim)


def read_states(
    backbone: Backbone,
    encoded: Encoded,
    recipe: Recipe,
    read: ReadAt,
    tokens: Float[Tensor, "b e"] | None = None,
    place: TokenPlace = "first",
    width: int | None = None,
) -> Float[Tensor, "b d"]:
    """The state of each text at its last token, its recipe's readout, or the mean over its span.

    Differentiable where the caller's gradient mode says so.

    Args:
        backbone: frozen, or with adapters.
        encoded: at least one text, encoded under `recipe`; see `require_room_for_token`.
        recipe: resolved; see `require_fits`.
        read: where; with the graph token last, `last` is the graph token itself.
        tokens: one graph token per text, as the embedding layer would give it out, before positions are
            added; any dtype. None: the texts alone, computed as extraction does.
        place: before the first token of the input, or after its last one.
        width: to how many tokens inputs are padded, the graph token among them; None for the longest of them.

    Returns:
        float32, whatever the backbone's dtype.
    """
    batch = padded_batch(backbone, encoded, recipe)
    # Through the layer itself, which may scale what it gives out (Gemma), and may be trained (`train: full`).
    embedded = cast(Tensor, _embedding(backbone)(batch.token_ids))
    if tokens is not None:
        embedded, batch = _with_token(embedded, batch, tokens.to(embedded.dtype), place)
    if width is not None and width > embedded.shape[1]:
        embedded = nn.functional.pad(embedded, (0, 0, 0, width - embedded.shape[1]))
        batch = widened(batch, width)
    name = ArrayName.parse(state_array(read, backbone.sizes))
    stop_after = None if name.index == "final" else name.index
    recorder = Recorder([name], batch, stop_after)
    # In a causal model no token sees the padding to its right.
    mask = None if backbone.family.is_decoder else batch.is_token
    with recording(recorder):
        backbone.model(inputs_embeds=embedded, attention_mask=mask)
    recorder.require_complete(backbone.sizes.model_type)
    return recorder.rows[name.text].float()


def widened(batch: Batch, width: int) -> Batch:
    """The same texts with padding up to `width` tokens; `batch` has no placeholders and hides nothing."""
    ids = batch.token_ids
    more = (0, width - ids.shape[1])
    is_token = torch.ones_like(ids, dtype=torch.bool) if batch.is_token is None else batch.is_token
    wide = nn.functional.pad(is_token, more)
    return replace(
        batch,
        token_ids=nn.functional.pad(ids, more),
        is_token=wide,
        flat=torch.nonzero(wide.flatten()).squeeze(1),
        span=nn.functional.pad(batch.span, more),
    )


def _with_token(
    embedded: Float[Tensor, "b t e"],
    batch: Batch,
    tokens: Float[Tensor, "b e"],
    place: TokenPlace,
) -> tuple[Float[Tensor, "b t_plus_1 e"], Batch]:
    """The embeddings with the graph token among them, and where everything stands then."""
    column = tokens[:, None]
    if place == "first":
        return torch.cat([column, embedded], dim=1), replace(
            batch,
            token_ids=_column_first(batch.token_ids, 0),
            is_token=None if batch.is_token is None else _column_first(batch.is_token, 1),
            span=_column_first(batch.span, 0),
            flat=None,
            last=batch.last + 1,
            readout=batch.readout + 1,
        )
    last = batch.last + 1
    n_positions = embedded.shape[1] + 1
    is_here = torch.arange(n_positions, device=last.device) == last[:, None]
    wide = torch.cat([embedded, torch.zeros_like(embedded[:, :1])], dim=1)
    is_token = torch.arange(n_positions, device=last.device) <= last[:, None]
    return torch.where(is_here[..., None], column, wide), replace(
        batch,
        token_ids=torch.cat([batch.token_ids, torch.zeros_like(batch.token_ids[:, :1])], dim=1),
        is_token=is_token,
        span=torch.cat([batch.span, torch.zeros_like(batch.span[:, :1])], dim=1),
        flat=None,
        last=last,
    )


def _column_first(rows: Tensor, value: int) -> Tensor:
    return torch.cat([torch.full_like(rows[:, :1], value), rows], dim=1)


def _embedding(backbone: Backbone) -> nn.Embedding:
    return cast(nn.Embedding, backbone.model.get_input_embeddings())
