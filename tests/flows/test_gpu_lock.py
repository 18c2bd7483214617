"""One process at a time runs a backbone on a GPU; here a number stands for the GPU."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from permafrost.flows import context, gpu_lock
from permafrost.flows.context import SharedBackbone
from permafrost.flows.gpu_lock import FOLDER, GpuLock, holder, lock_file
from permafrost.stages.extraction import backbone as backbones

DEADLINE_S = 60
HOLDER = """
import sys, time
from permafrost.flows import gpu_lock
gpu_lock.gpu_id = lambda device: "gpu-a"
lock = gpu_lock.GpuLock()
lock.hold("cuda:0")
print("held", flush=True)
sys.stdin.readline()
"""


class Told:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, task: str, total: int | float, unit: str) -> None:
        self.notes.append(f"start {task}")

    def advance(self, amount: int | float, note: str = "") -> None:
        self.notes.append(note)

    def finish(self) -> None:
        self.notes.append("finish")


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """GPUs a and b, as cuda:0 and cuda:1."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu_lock, "gpu_id", lambda device: f"gpu-{'ab'[int(device[-1])]}")
    monkeypatch.setattr(gpu_lock, "LOOK_S", 0.01)
    return tmp_path / "locks"


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_gpu_waits_for_another_process_until_that_ends_even_if_it_is_killed() -> None:
    lock, elsewhere, told = GpuLock(), GpuLock(), Told()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        elsewhere.hold("cuda:1", told)
        assert told.notes == [], "the other GPU is free"
        waiting = threading.Thread(target=lock.hold, args=("cuda:0", told))
        waiting.start()
        until(lambda: len(told.notes) > 2)
        assert told.notes[0] == "start wait"
        named = f"waiting for the GPU cuda:0, which process {other.pid} on "
        assert told.notes[1].startswith(named)
        assert waiting.is_alive()
        other.kill()
    waiting.join(DEADLINE_S)
    assert told.notes[-1] == "finish"
    assert holder(lock_file("gpu-a")) == holder(lock_file("gpu-b"))
    lock.release()
    elsewhere.release()


def test_who_holds_a_gpu_knows_of_who_waits() -> None:
    first, second, third = GpuLock(), GpuLock(), GpuLock()
    assert not first.is_wanted
    first.hold("cuda:0")
    first.hold("cuda:0")  # again, as each node does
    assert not first.is_wanted
    waiting = threading.Thread(target=second.hold, args=("cuda:0",))
    waiting.start()
    until(lambda: first.is_wanted)
    first.release()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    assert not second.is_wanted
    second.release()
    third.hold("cuda:0")
    third.release()


def test_a_cpu_has_no_lock(locks: Path) -> None:
    lock = GpuLock()
    lock.hold("cpu")
    assert not lock.is_wanted
    assert not locks.exists()


def test_a_wait_that_nobody_watches_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    first, second = GpuLock(), GpuLock()
    first.hold("cuda:0")
    waiting = threading.Thread(target=second.hold, args=("cuda:0",))
    waiting.start()
    until(lambda: first.is_wanted and caplog.records)
    time.sleep(0.05)
    first.release()
    waiting.join(DEADLINE_S)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("waiting for the GPU cuda:0, which process ")
    second.release()


def test_a_backbone_is_kept_between_nodes_unless_another_process_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[str] = []

    def load(files: object, dtype: str, device: str) -> Any:
        loads.append(device)
        return SimpleNamespace(device=SimpleNamespace(type="cpu"))

    monkeypatch.setattr(backbones, "load_backbone", load)
    monkeypatch.setattr(context, "device_name", lambda name: {"auto": "cuda:0"}[name])
    target = cast(
        "Any",
        SimpleNamespace(
            files=SimpleNamespace(weights_digest="w", tokenizer_digest="t"),
            identity=SimpleNamespace(compute_dtype="float32"),
        ),
    )
    ours, theirs = SharedBackbone(), GpuLock()
    ours.load(target, "auto")
    ours.release()
    ours.load(target, "auto")
    assert loads == ["auto"]
    waiting = threading.Thread(target=theirs.hold, args=("cuda:0",))
    waiting.start()
    until(lambda: len(list(lock_file("gpu-a").parent.iterdir())) == 2)
    until(lambda: ours._gpu.is_wanted)
    ours.release()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    ours.weights(target, "auto")  # reads, and waits for nobody
    theirs.release()
    ours.load(target, "auto")
    assert loads == ["auto", "auto"]
    ours.drop()
    theirs.hold("cuda:0")
    theirs.release()
