"""A digest of trained numbers, to tell encoders apart."""

import hashlib
from collections.abc import Mapping

import torch


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values, 64 hex digits; the same on every device."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
