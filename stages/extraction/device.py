"""The device that a name of the runtime settings stands for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch

GPU_FILES = ("nvidia[0-9]*", "nvidia-caps", "kfd", "dxg")
"""What lies in /dev where there may be a GPU that torch can use: NVIDIA's, AMD's, Windows's."""

_NAME = re.compile(r"auto|(cpu|cuda)(:(0|[1-9]\d?))?", re.ASCII)


def require_known_device(name: str) -> None:
    """Check that a device has a name that is known, be there one here or not.

    Raises:
        InputError: it has not.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"the device {quoted(name)} is not supported; use auto, cpu, cuda or cuda:1"
        )


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
    require_known_device(name)
    import torch

    torch.backends.cudnn.allow_tf32 = False
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
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
