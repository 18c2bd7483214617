"""The gate of a home: nothing of it is removed while a run begins, and no run begins while something is
removed.

A run first records what it will use, then passes the gate, then looks what is there. Whoever removes
closes the gate, then reads the records, then removes. So either the run sees what was removed and makes
it again, or its record is seen and nothing of it is removed.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.errors import StoreBusyError
from permafrost.storage.lease import Lease
from permafrost.storage.locked_files import unlocking
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import Replica, public_name, replica_of

LOCK = "removing.lock"
LEASE = "removing.lease"
LOOK_S = 0.2
"""How often to see whether the gate is free."""
PATIENCE_S = 10.0
"""How long whoever removes waits for another one."""


@contextlib.contextmanager
def removing(home: Path) -> Generator[Callable[[], None]]:
    """Hold the gate closed; the kernel opens it when the process dies, and on an object store a lease
    expires. The records of runs are those of all machines.

    Yields:
        What to call before anything is removed. It raises StoreBusyError where the gate may be open again, as
        this machine slept or was cut off for longer than a lease lasts.

    Raises:
        StoreBusyError: another process removes something of this home.
    """
    with _opened(home) as fd:
        _lock(fd, home)
        if (replica := replica_of(home)) is None:
            yield lambda: None
            return
        with _leased(replica, home) as lease:
            replica.pull(home, SilentProgress())
            yield lambda: _require(lease, home)


@contextlib.contextmanager
def _leased(replica: Replica, home: Path) -> Generator[Lease]:
    """The lease that closes the gate for other machines."""
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                lease = stack.enter_context(replica.lease(home / "runs" / LEASE))
                break
            except StoreBusyError as error:
                if time.monotonic() > deadline:
                    raise _busy(error.writer or "another process", home) from error
            time.sleep(LOOK_S * 5)
        yield lease


def _require(lease: Lease, home: Path) -> None:
    if lease.lost is not None:
        raise StoreBusyError(
            f"the lease {public_name(home / 'runs' / LEASE)} was lost ({lease.lost}), so a run that has "
            "begun since may use what was to be removed; what is gone is gone, the rest stays. Run the same "
            "command again"
        )


def pass_gate(home: Path, check: Callable[[], None] = lambda: None) -> None:
    """Wait until nothing is being removed; call it when the record of a run is written, before looking
    at what is there.

    Args:
        home: the home.
        check: called while it waits; what it raises ends the waiting.
    """
    with _opened(home) as fd:
        while not _try(fd, fcntl.LOCK_SH):
            check()
            time.sleep(LOOK_S)
    if (replica := replica_of(home)) is None:
        return
    lease = home / "runs" / LEASE
    while replica.exists(lease):
        # By taking it: that of a machine that has died expires.
        with contextlib.suppress(StoreBusyError), replica.lease(lease):
            break
        check()
        time.sleep(LOOK_S * 5)
    # What was removed between the opening of this home and the record.
    replica.pull(home, SilentProgress())


@contextlib.contextmanager
def _opened(home: Path) -> Generator[int]:
    path = home / "runs" / LOCK
    with disk_errors_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link would lock a file elsewhere, which another home may lock as well.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with unlocking(fd):
        yield fd


def _lock(fd: int, home: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not _try(fd, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            raise _busy("another process", home)
        time.sleep(LOOK_S)


def _busy(who: str, home: Path) -> StoreBusyError:
    return StoreBusyError(
        f"{who} is removing something of {public_name(home)}; wait until it has ended. Nothing was removed"
    )


def _try(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
