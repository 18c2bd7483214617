"""Files that are locked with `flock`, which the kernel unlocks when their process dies."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager


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
