"""The device that a name of the runtime settings stands for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch

GPU_FILES = ("nvidia[0-9]*", "nvidia-caps", "kfd", "dxg")
"""What lies in /dev where there may be a GPU that torch can use: NVIDIA's, AMD's, Windows's."""


def device_name(name: str) -> str:
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` is the first GPU if there is one, else the CPU.

    torch, whose import takes a second, is asked where there may be a GPU only. From here on float32 is
    computed in float32 there: as it comes, torch lets cuDNN round what recurrent layers multiply to TF32.

    Raises:
        InputError: there is no such device here.
    """
    if name == "cpu":
        return name
    if name == "auto" and not any(any(Path("/dev").glob(file)) for file in GPU_FILES):
        return "cpu"
    import torch

    torch.backends.cudnn.allow_tf32 = False
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(
            f"there is no device {quoted(name)}; use auto, cpu, cuda or cuda:1"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(
            f"the device {quoted(name)} is not supported; use auto, cpu, cuda or cuda:1"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"the device {quoted(name)} was asked for, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} CUDA devices here; use auto or cpu"
        )
    return str(device)


def choose_device(name: str) -> torch.device:
    """The torch device of that name. Raises as `device_name`."""
    import torch

    return torch.device(device_name(name))
