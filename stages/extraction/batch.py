"""One padded batch on the device, and how its padded tensors become rows without padding.

Axes: B texts, T positions of the longest text, D columns, N tokens of all texts.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from permafrost.stages.extraction.recipes.inputs import OPENING, PLACEHOLDER, Encoded
from permafrost.storage.ragged import Ragged


@dataclass(frozen=True)
class Placeholders:
    """The placeholder tokens of a batch."""

    at: Int64[Tensor, " p"]
    """Indices into the flattened [B * T] axis."""
    kind: Int64[Tensor, " p"]
    """0 for local placeholders, 1 for opening ones."""


@dataclass(frozen=True)
class Copies:
    """Which states are copied over which, as indices into the flattened [B * T] axis."""

    source: Int64[Tensor, " c"]
    target: Int64[Tensor, " c"]
    """Each index at most once."""


@dataclass(frozen=True)
class Batch:
    """Texts padded on the right, so that position ids and causal masks need no correction."""

    token_ids: Int64[Tensor, "b t"]
    """0 where a placeholder is."""
    is_token: Bool[Tensor, "b t"] | None
    """False at padding; None if there is none."""
    flat: Int64[Tensor, " n"] | None
    """Indices of the tokens in the flattened [B * T] axis; None if there is no padding."""
    span: Bool[Tensor, "b t"]
    first: Int64[Tensor, " b"]
    """Position of the first token."""
    last: Int64[Tensor, " b"]
    """Position of the last token."""
    readout: Int64[Tensor, " b"]
    """Position of the readout token."""
    placeholders: Placeholders | None
    """None if the recipe has none."""
    copies: Copies | None
    """None if the recipe rewires nothing."""
    attends: Bool[Tensor, "b 1 t t"] | None = None
    """Which keys a query attends to, of a decoder; None for all before it."""

    def pack(self, rows: Num[Tensor, "b t d"]) -> Num[Tensor, "n d"]:
        """Rows of all tokens, text after text, without padding."""
        flat = rows.flatten(0, 1)
        # A copy even without padding: a view would keep the whole of a fused projection alive.
        return flat.contiguous() if self.flat is None else flat.index_select(0, self.flat)

    def at(self, positions: Int64[Tensor, " b"], rows: Num[Tensor, "b t d"]) -> Num[Tensor, "b d"]:
        """The row of each text at its position."""
        return rows[torch.arange(len(positions), device=rows.device), positions]

    def span_mean(self, rows: Float[Tensor, "b t d"]) -> Float[Tensor, "b d"]:
        """Mean over each text's span, summed and divided in float32."""
        return self.span_sum(rows) / self.span.sum(1, keepdim=True)

    def span_sum(self, rows: Float[Tensor, "b t d"]) -> Float[Tensor, "b d"]:
        """Sum over each text's span, in float32."""
        # Masked, not multiplied by 0: activations at padding need not be finite.
        return rows.float().masked_fill(~self.span[..., None], 0.0).sum(1)


def pad(
    encoded: Encoded, readout: Literal["first", "last"], pad_token: int, device: torch.device
) -> Batch:
    """Pad texts on the right with `pad_token` and move them to the device.

    Args:
        encoded: at least one text, each with at least one token in its span.
        readout: which token of each text is the readout.
        pad_token: any id of the model's vocabulary.
        device: of the batch.
    """
    token_ids, span = encoded.token_ids, encoded.span
    lengths = token_ids.lengths
    assert np.array_equal(token_ids.offsets, span.offsets), "token ids and span differ in length"
    assert lengths.min(initial=1) > 0, "every text of a batch needs a token"
    is_token = np.arange(lengths.max()) < lengths[:, None]
    ids_BT = np.full(is_token.shape, pad_token, dtype=np.int64)
    ids_BT[is_token] = token_ids.data
    span_BT = np.zeros(is_token.shape, dtype=np.bool_)
    span_BT[is_token] = span.data
    assert span_BT.any(1).all(), "every text needs a token in its span"
    padded = not is_token.all()
    last = torch.from_numpy(lengths - 1).to(device)
    first = torch.zeros_like(last)
    placeholders = _placeholders(ids_BT, device)
    return Batch(
        token_ids=torch.from_numpy(np.maximum(ids_BT, 0)).to(device),
        is_token=torch.from_numpy(is_token).to(device) if padded else None,
        flat=torch.from_numpy(np.flatnonzero(is_token)).to(device) if padded else None,
        span=torch.from_numpy(span_BT).to(device),
        first=first,
        last=last,
        readout=first if readout == "first" else last,
        placeholders=placeholders,
        copies=None if encoded.copies is None else _copies(encoded.copies, lengths, device),
        attends=None if encoded.unseen is None else _attends(encoded.unseen, lengths, device),
    )


def _attends(
    unseen: Ragged, lengths: Int64[np.ndarray, " b"], device: torch.device
) -> Bool[Tensor, "b 1 t t"]:
    """Causal attention less what is not seen; no query loses itself, so that each attends to something."""
    longest = int(lengths.max())
    seen_BTT = np.tile(np.tri(longest, dtype=np.bool_), (len(unseen), 1, 1))
    for text in range(len(unseen)):
        for query, first, end in unseen[text].tolist():
            assert 0 <= first < end <= lengths[text], "keys that the text does not have"
            assert not first <= query < end, "a query that does not see itself"
            seen_BTT[text, query, first:end] = False
    return torch.from_numpy(seen_BTT)[:, None].to(device)


def _placeholders(ids_BT: Int64[np.ndarray, "b t"], device: torch.device) -> Placeholders | None:
    at = np.flatnonzero(ids_BT < 0)
    if not len(at):
        return None
    kind = PLACEHOLDER - ids_BT.ravel()[at]
    assert kind.max() <= PLACEHOLDER - OPENING, (
        "a token id that is neither a token nor a placeholder"
    )
    return Placeholders(torch.from_numpy(at).to(device), torch.from_numpy(kind).to(device))


def _copies(copies: Ragged, lengths: Int64[np.ndarray, " b"], device: torch.device) -> Copies:
    text = np.repeat(np.arange(len(copies)), copies.lengths)
    inside = (copies.data >= 0) & (copies.data < lengths[text, None])
    assert inside.all(), "a copy from or to a position that its text does not have"
    flat = copies.data + text[:, None] * lengths.max()
    assert len(np.unique(flat[:, 1])) == len(flat), "two copies to one position"
    source, target = torch.from_numpy(np.ascontiguousarray(flat.T)).to(device)
    return Copies(source, target)
