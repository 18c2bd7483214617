"""Digests of trained numbers and of files, to tell encoders apart and to find damage."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from permafrost.storage.durable import large_sha256


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values, 64 hex digits; the same on every device."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def digests_of(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a folder and the folders in it, by name."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {path.relative_to(folder).as_posix(): large_sha256(path) for path in paths}
