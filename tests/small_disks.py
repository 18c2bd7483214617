"""File systems that are soon full."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of this size in a folder; the test is skipped where none can be mounted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        # Lazily: what failed may hold its file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
