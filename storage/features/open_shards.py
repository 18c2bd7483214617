"""Shards that stay open between reads, as many as a process may have files open."""

import errno
import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable

from permafrost.storage.errors import UnreadableError
from permafrost.storage.features.shard import Checked, ShardRows

Cell = tuple[int, str]
"""Segment and array."""

MOST = 1024
"""Open shards of a process: a kernel limits maps too, and each keeps pages in memory."""
_FEWEST = 8


class OpenShards:
    """The shards of one store that were used last.

    Each holds a descriptor, of which a process may have 1,024 on many systems. So at most half as many shards
    are open in a process; beyond, the store with most of them closes the one that was used longest ago. What
    was read of it stays valid. Of a closed shard it is kept which chunks were verified, so that its checksums
    are not made again as long as it is the same file.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[Cell, ShardRows] = OrderedDict()
        """In order of use."""
        self._checked: dict[Cell, Checked] = {}
        _ALL[id(self)] = self

    def __len__(self) -> int:
        return len(self._open)

    def of(self, cell: Cell, opening: Callable[[int, str], ShardRows]) -> ShardRows:
        """The shard of a cell, opened if it is not open."""
        try:
            self._open.move_to_end(cell)
            return self._open[cell]
        except KeyError:
            pass  # not open, or just closed by another thread
        try:
            found = opening(*cell)
        except UnreadableError as error:
            # The rest of the process has more files open than we left it.
            if not _is_of_too_many(error) or not self._close_half():
                raise
            found = opening(*cell)
        if (checked := self._checked.get(cell)) is not None:
            found.trust(checked)
        self._open[cell] = found
        _close_some()
        return found

    def _close_half(self) -> bool:
        closed = [self.close_oldest() for _ in range((len(self) + 1) // 2)]
        return any(closed)

    def clear(self) -> None:
        """Close all, and forget what was verified."""
        self._open.clear()
        self._checked.clear()

    def close_oldest(self) -> bool:
        """Close the shard with a file that was used longest ago; whether there was one."""
        for cell in list(self._open):
            shard = self._open.get(cell)
            # One in an object store has no file as long as only ranges of it were fetched.
            if shard is not None and shard.checked.file is not None:
                self._checked[cell] = shard.checked
                self._open.pop(cell, None)
                return True
        return False


_ALL: "weakref.WeakValueDictionary[int, OpenShards]" = weakref.WeakValueDictionary()
"""Those of all stores of this process."""


def most_open() -> int:
    """How many shards may be open in this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(_FEWEST, min(MOST, soft // 2))


def _is_of_too_many(error: UnreadableError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)


def _close_some() -> None:
    stores = [store for ref in _ALL.valuerefs() if (store := ref()) is not None]
    for _ in range(sum(map(len, stores)) - most_open()):
        if not any(store.close_oldest() for store in sorted(stores, key=len, reverse=True)):
            return
