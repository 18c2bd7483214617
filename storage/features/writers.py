"""Who writes to a store right now."""

import fcntl
import os

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import LEASE, lock_path, named_writer
from permafrost.storage.locked_files import unlocking
from permafrost.storage.replica import replica_of


def writer_of(store: FeatureStore) -> str | None:
    """Who holds the write lease of a store, `process 7 on host`; None if nobody does. Does not wait, and
    leaves the lease alone.

    Raises:
        ObjectStoreError: the lease on an object store cannot be read.
    """
    path = lock_path(store)
    with disk_errors_named(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            fd = None
    if fd is not None:
        with unlocking(fd):
            try:
                # Shared, and for an instant: no two of us take each other for a writer.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return named_writer(path)
    if (replica := replica_of(store.root)) is None:
        return None
    return replica.lease(store.root / LEASE).holder()
