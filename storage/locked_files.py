"""Files that are locked with `flock`, which the kernel unlocks when their process dies."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager

LOOK_S = 0.02
"""How long who finds a file locked waits before the second try."""


@contextmanager
def unlocking(fd: int) -> Generator[None]:
    """Unlock and close an open file at the end.

    Closing alone is not enough: a process that was forked meanwhile has the file open too, and would hold the
    lock as long as it lives. Should that one come here, it leaves the lock to its parent.
    """
    pid = os.getpid()
    try:
        yield
    finally:
        try:
            if os.getpid() == pid:
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)


def lock(fd: int) -> None:
    """Lock an open file for this process alone.

    Raises:
        BlockingIOError: another process has it locked.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Who only looks whether somebody has it locked holds it for an instant.
        time.sleep(LOOK_S)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
