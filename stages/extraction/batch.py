"""One padded batch on the device, and the ways from its padded tensors to rows without padding.

Axes: B texts, T positions of the longest text, D columns, N tokens of all texts.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from storage.ragged import Ragged


@dataclass(frozen=True)
class Batch:
    """Texts padded on the right, where position ids and causal masks need no correction."""

    token_ids: Int64[Tensor, "b t"]
    is_token: Bool[Tensor, "b t"] | None
    """False at padding; None if there is none."""
    flat: Int64[Tensor, " n"] | None
    """Where the tokens lie when texts and positions are flattened; None if there is no padding."""
    span: Bool[Tensor, "b t"]
    first: Int64[Tensor, " b"]
    last: Int64[Tensor, " b"]
    readout: Int64[Tensor, " b"]
    """Position of the readout token."""

    def pack(self, rows: Num[Tensor, "b t d"]) -> Num[Tensor, "n d"]:
        """Rows of all tokens, text after text, without padding."""
        flat = rows.flatten(0, 1)
        # A copy also where there is no padding: a view would keep all of a fused projection alive.
        return flat.contiguous() if self.flat is None else flat.index_select(0, self.flat)

    def at(self, positions: Int64[Tensor, " b"], rows: Num[Tensor, "b t d"]) -> Num[Tensor, "b d"]:
        """One row of each text."""
        return rows[torch.arange(len(positions), device=rows.device), positions]

    def span_mean(self, rows: Float[Tensor, "b t d"]) -> Float[Tensor, "b d"]:
        """Mean over each text's span, summed and divided in float32."""
        # Filled with 0, not multiplied by it: what the model computes at padding need not be finite.
        inside = rows.float().masked_fill(~self.span[..., None], 0.0)
        return inside.sum(1) / self.span.sum(1, keepdim=True)


def pad(
    token_ids: Ragged,
    span: Ragged,
    readout: Literal["first", "last"],
    pad_token: int,
    device: torch.device,
) -> Batch:
    """Lay texts side by side, padded on the right with `pad_token`.

    Args:
        token_ids: int32, at least one text and one token per text.
        span: bool, same offsets; True at one token or more of each text.
        readout: which token of each text is the readout.
        pad_token: any id that the model knows.
        device: where the batch goes.
    """
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
    return Batch(
        token_ids=torch.from_numpy(ids_BT).to(device),
        is_token=torch.from_numpy(is_token).to(device) if padded else None,
        flat=torch.from_numpy(np.flatnonzero(is_token)).to(device) if padded else None,
        span=torch.from_numpy(span_BT).to(device),
        first=first,
        last=last,
        readout=first if readout == "first" else last,
    )
