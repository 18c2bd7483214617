"""The order in which examples are trained on, and latents on a device."""

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor


def shuffled_batches(n: int, batch_size: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Every example once, in an order of (seed, epoch) alone; a last batch of one joins its neighbour.

    A batch of one has no variance. (The notebooks drop the last partial batch, so that some examples
    are never seen.)
    """
    order = np.random.default_rng([seed, epoch]).permutation(n)
    stops = list(range(batch_size, n, batch_size))
    if stops and n - stops[-1] == 1:
        stops.pop()
    return np.split(order, stops)


def gather(
    latents: Float32[np.ndarray, "n l d"], texts: Int64[np.ndarray, " m"], device: torch.device
) -> Float[Tensor, "m l d"]:
    """These texts' latents on a device."""
    return torch.from_numpy(np.ascontiguousarray(latents[texts])).to(device)
