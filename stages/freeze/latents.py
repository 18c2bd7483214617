"""Latents: the pooled rows of several layers, read from stored arrays into one array, and batches of them.

Axes: n texts, m texts of a batch, l layers, d d_model.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from permafrost.storage.errors import InputError
from permafrost.storage.readers import FeatureReader

LEAST = 2
"""Minimum texts or pairs in a batch, as one has no variance. (The notebooks drop the last partial batch, so
some examples are never seen.)"""
_TEXTS_AT_A_TIME = 1024


def read_latents(readers: Sequence[FeatureReader]) -> Float32[np.ndarray, "n l d"]:
    """One row per text and layer, in the order of the readers: `pooled/hidden_last/1` and so on.

    Raises:
        InputError: there are no readers, texts or widths differ, or an array does not have one row per text.
    """
    if not readers:
        raise InputError("there are no layers to read; name at least one pooled array")
    first = readers[0]
    for reader in readers:
        if (reader.n_texts, reader.width) != (first.n_texts, first.width):
            raise InputError(
                f"{reader.array} has {reader.n_texts} texts of width {reader.width} and {first.array} "
                f"{first.n_texts} of width {first.width}; open every layer for the same texts of one store"
            )
        wrong = np.flatnonzero(reader.lengths != 1)
        if len(wrong):
            raise InputError(
                f"{reader.array} has {reader.lengths[wrong[0]]} rows for text {wrong[0]}, but a latent is "
                "one row per text; name a pooled array such as pooled/hidden_last/6"
            )
    latents_NLD = np.empty((first.n_texts, len(readers), first.width), np.float32)
    for layer, reader in enumerate(readers):
        for texts, rows in reader.in_order(_TEXTS_AT_A_TIME):
            latents_NLD[texts, layer] = rows.data
    return latents_NLD


def gather(
    latents: Float32[np.ndarray, "n l d"], texts: Int64[np.ndarray, " m"], device: torch.device
) -> Float[Tensor, "m l d"]:
    """These texts' latents on a device."""
    return torch.from_numpy(np.ascontiguousarray(latents[texts])).to(device)
