"""Finished folders of files that become objects, each by one machine alone: files of two machines, whose
bytes may differ, never stand under one manifest."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from permafrost.storage.errors import StoreBusyError
from permafrost.storage.replica import Replica

LOOK_S = 1.0
"""How often to see whether another machine has uploaded what this one is about to upload."""


def uploaded(
    replica: Replica, folder: Path, target: Path, names: Sequence[str], how: Literal["new", "again"]
) -> bool:
    """Upload a finished folder, unless another machine does or did.

    Args:
        replica: where to.
        folder: on this machine.
        target: its place in the replica.
        names: files, the one without which the others mean nothing last.
        how: `again` uploads over what is there, and deletes what is not named.

    Returns:
        Whether this machine uploaded it; if not, the last file is there.

    Raises:
        StoreBusyError: it took so long, as while the machine slept, that another one may have begun to.
    """
    while True:
        if how == "new" and replica.exists(target / names[-1]):
            return False
        with contextlib.ExitStack() as stack:
            try:
                lease = stack.enter_context(replica.lease(target.with_name(f"{target.name}.lease")))
            except StoreBusyError:
                time.sleep(LOOK_S)  # its holder uploads the same, or is dead and its lease expires
                continue
            if how == "new" and replica.exists(target / names[-1]):
                return False
            for name in names:
                lease.require()
                replica.put(folder / name, target / name)
            if how == "again":
                lease.require()
                replica.keep_only(target, names)
            return True
