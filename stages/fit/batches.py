"""Stored features to tensors, and a head over many of them."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import FeatureReader


def to_tensors(
    features: Ragged, device: torch.device
) -> tuple[Float[Tensor, "t d"], Int[Tensor, " n_plus_1"]]:
    """Packed tokens and offsets on a device; no copy on the CPU when the memory is writable float32."""
    data = np.require(features.data, dtype=np.float32, requirements=["C", "W"])
    return torch.from_numpy(data).to(device), torch.from_numpy(features.offsets).to(device)


@torch.no_grad()
def per_text(
    reader: FeatureReader,
    batch_size: int,
    device: torch.device,
    compute: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "n d"]:
    """`compute(tokens, offsets)` for every text of a reader, in its order, on the CPU."""
    parts = [compute(*to_tensors(rows, device)).cpu() for _, rows in reader.in_order(batch_size)]
    return torch.cat(parts)
