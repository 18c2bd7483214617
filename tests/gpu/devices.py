"""Where the checks of this folder compute: a CUDA device, or none and they are skipped.

PERMAFROST_CHECK_DEVICE names another device. `cpu` runs the checks where there is no GPU: that shows that
they still run, and nothing about a GPU.
"""

import os

import pytest
import torch

from permafrost.stages.extraction.device import device_name


def checked_device() -> str:
    """The device to check; skips the module that asks where there is none."""
    named = os.environ.get("PERMAFROST_CHECK_DEVICE", "")
    if not named and not torch.cuda.is_available():
        pytest.skip(
            "no CUDA device; `make gpu-check` on a machine with one", allow_module_level=True
        )
    return device_name(named or "cuda")
