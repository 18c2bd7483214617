"""The device that a name stands for; torch is asked only where there may be a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from permafrost.stages.extraction import device
from permafrost.stages.extraction.device import choose_device, device_name
from permafrost.storage.errors import InputError


def test_the_cpu_is_named_without_torch() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from permafrost.stages.extraction import device; device.GPU_FILES = ();"
            "print(device.device_name('cpu'), device.device_name('auto'), 'torch' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["cpu", "cpu", "False"]


@pytest.mark.parametrize(("available", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_where_there_may_be_a_gpu_torch_tells(
    monkeypatch: pytest.MonkeyPatch, available: bool, chosen: str
) -> None:
    monkeypatch.setattr(device, "GPU_FILES", ("null",))
    assert Path("/dev/null").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert device_name("auto") == chosen


def test_recurrent_layers_compute_in_float32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's LSTM in TF32 was 2e-4 of its largest number from the CPU's, on an H200."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(device, "GPU_FILES", ("null",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_name("auto") == "cuda"
    assert torch.backends.cudnn.allow_tf32 is False


@pytest.mark.parametrize("name", ["tpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}'"):
        device_name(name)


def test_a_device_of_torch() -> None:
    assert choose_device("cpu") == torch.device("cpu")
