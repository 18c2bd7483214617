"""One backbone at a time on a GPU: who runs one there holds the GPU's lock, whatever has started it.

The lock is a file of this machine, locked with `flock`, which ends with its process, however that ends. Runs
of a schedule, of a terminal and of a notebook know of each other by it, also those of different homes and
servers. Who waits for it has locked a second file, so that the holder knows that it is to make room.
"""

import contextlib
import fcntl
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from permafrost.storage.progress import WAIT, Progress, SilentProgress

FOLDER = "PERMAFROST_LOCKS"
"""Environment variable: where the locks lie, for processes that have different temporary folders."""
LOOK_S = 0.5
"""How often to see whether a GPU is free."""


class GpuLock:
    """The lock of the GPU that this process runs its backbone on, if it runs one."""

    def __init__(self) -> None:
        self._held: tuple[str, int] | None = None

    def hold(self, device: str, progress: Progress | None = None) -> None:
        """Hold the lock of a device from now on; waits while another process has it.

        Args:
            device: as `device_name` returns it; a CPU has no lock.
            progress: is told who has it; a warning is logged without one.
        """
        if not device.startswith("cuda"):
            return
        gpu = gpu_id(device)
        if self._held is not None and self._held[0] == gpu:
            return
        self.release()
        self._held = gpu, _locked(lock_file(gpu), device, progress or _Logged())

    @property
    def is_wanted(self) -> bool:
        """Whether it is held, and another process waits for it."""
        if self._held is None:
            return False
        with _open(_queue_of(lock_file(self._held[0]))) as queue:
            return not _is_taken(queue)

    def release(self) -> None:
        """Let others have it."""
        if self._held is not None:
            os.close(self._held[1])
            self._held = None


class _Logged(SilentProgress):
    """Says once that it waits."""

    def __init__(self) -> None:
        self._told = False

    def advance(self, amount: int | float, note: str = "") -> None:
        """Log the note."""
        if not self._told:
            logging.getLogger(__name__).warning("%s", note)
        self._told = True


def gpu_id(device: str) -> str:
    """What a GPU is called by everybody on this machine, whatever number it has in a process."""
    import torch

    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)


def lock_file(gpu: str) -> Path:
    """Where the lock of a GPU lies."""
    folder = os.environ.get(FOLDER)
    return Path(folder or Path(tempfile.gettempdir()) / "permafrost-gpus") / f"{gpu}.lock"


def holder(path: Path) -> str:
    """Who holds a lock, as far as it says so."""
    try:
        found = json.loads(path.read_text())
        return f"process {int(found['pid'])} on {found['host']}"
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return "another process"


def _queue_of(lock: Path) -> Path:
    return lock.with_suffix(".queue")


def _locked(path: Path, device: str, progress: Progress) -> int:
    """The file, locked; it is closed by the caller."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_open(path))
        if not _is_taken(file):
            progress.start(WAIT, 0, "")
            # Those who wait do so in turn.
            queue = stack.enter_context(_open(_queue_of(path)))
            for wanted in (queue, file):
                while not _is_taken(wanted):
                    note = f"waiting for the GPU {device}, which {holder(path)} has"
                    progress.advance(0, note)
                    time.sleep(LOOK_S)
            progress.finish()
        with contextlib.suppress(OSError):  # a file of another user can be locked, and not written
            path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        return os.dup(file)


@contextlib.contextmanager
def _open(path: Path) -> Generator[int]:
    """A file for reading, made if it is not there, by whoever runs something on this machine."""
    before = os.umask(0)
    try:
        path.parent.mkdir(mode=0o777, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o666))
    finally:
        os.umask(before)
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _is_taken(file: int) -> bool:
    """Whether an open file could be locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
