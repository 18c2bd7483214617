"""Latents on a device."""

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

LEAST = 2
"""A batch of one has no variance. (The notebooks drop the last partial batch, so that some examples are
never seen.)"""


def gather(
    latents: Float32[np.ndarray, "n l d"], texts: Int64[np.ndarray, " m"], device: torch.device
) -> Float[Tensor, "m l d"]:
    """These texts' latents on a device."""
    return torch.from_numpy(np.ascontiguousarray(latents[texts])).to(device)
