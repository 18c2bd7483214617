"""Where the bytes of a committed shard come from: a memory map, a file without maps, or an object store."""

import mmap
import os
import weakref
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.disk_errors import require_damage
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.file_marks import marks_of
from permafrost.storage.replica import Replica, public_name, replica_of

HELD = 2
"""Slices of a shard in an object store that are held: a text that crosses from one chunk into the next."""


@runtime_checkable
class ShardBytes(Protocol):
    """The bytes of one shard, by slices.

    Raises:
        CorruptDataError: from any call; there are none, or not all of them.
        UnreadableError: from any call; the disk or the system failed.
    """

    @property
    def stays(self) -> bool:
        """Whether a slice gives the same bytes whenever it is asked for, so that it is checked only once."""
        ...

    @property
    def file(self) -> tuple[int, ...] | None:
        """What distinguishes the file that is open from others of its name; None while none is open."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice) -> NDArray[np.uint8]: ...

    def will_need(self) -> None:
        """Most of them will be asked for soon."""
        ...


def shard_bytes(path: Path, n_bytes: int) -> ShardBytes:
    """The bytes of the shard at `path`, which should be `n_bytes`.

    Raises:
        CorruptDataError: the file is missing, or of another size.
        UnreadableError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            mapped = mapping_of(file)
            found = (
                FileBytes(path, file)
                if mapped is None
                else MappedBytes(mapped, marks_of(os.fstat(file.fileno())))
            )
    except (FileNotFoundError, ValueError) as error:
        if (replica := replica_of(path)) is not None and not path.exists():
            return RangedBytes(replica, path, n_bytes)
        raise CorruptDataError(f"{damaged(path)}: the file is missing or empty") from error
    except OSError as error:
        require_damage(path, error)
        raise CorruptDataError(f"{damaged(path)}: {error.strerror}") from error
    if len(found) != n_bytes:
        raise CorruptDataError(
            f"{damaged(path)}: it has {len(found):,} bytes, its receipt says {n_bytes:,}"
        )
    return found


class MappedBytes:
    """Bytes of a file that is mapped."""

    stays = True

    def __init__(self, mapped: mmap.mmap, file: tuple[int, ...]) -> None:
        self._map, self._bytes, self.file = mapped, np.frombuffer(mapped, np.uint8), file

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        return self._bytes[which]

    def will_need(self) -> None:
        """Have the kernel read the file ahead, in pieces larger than a page fault brings."""
        if hasattr(mmap, "MADV_WILLNEED"):
            self._map.madvise(mmap.MADV_WILLNEED)


class FileBytes:
    """Bytes of a file that cannot be mapped. It stays open, so that it can be read after it was removed.

    The last slice is kept, as rows of one chunk are often asked for in turn.
    """

    stays = False

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._fd, self.file = (
            path,
            os.dup(file.fileno()),
            marks_of(os.fstat(file.fileno())),
        )
        self._n_bytes = os.fstat(self._fd).st_size
        self._held = (slice(0, 0), np.empty(0, np.uint8))
        weakref.finalize(self, os.close, self._fd)

    def __len__(self) -> int:
        return self._n_bytes

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        """The bytes of a slice; fewer where the file has been cut off since."""
        start, stop, _ = which.indices(self._n_bytes)
        held = self._held  # another thread may replace it
        if held[0] != slice(start, stop):
            held = self._held = (slice(start, stop), self._read(start, stop))
        return held[1]

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        content = bytearray()
        try:
            while piece := os.pread(self._fd, stop - start - len(content), start + len(content)):
                content += piece
        except OSError as error:
            require_damage(self._path, error)
            raise CorruptDataError(f"{damaged(self._path)}: {error.strerror}") from error
        found = np.frombuffer(content, np.uint8)
        found.flags.writeable = False
        return found

    def will_need(self) -> None:
        """Nothing is read ahead."""


class RangedBytes:
    """Bytes of a shard in an object store: a range of them for each slice.

    Once most of them are needed, or the ranges have cost as much as the whole shard, that is fetched. So one
    text costs the chunks that hold it, and no way of reading costs more than twice the cheapest.
    """

    def __init__(self, replica: Replica, path: Path, n_bytes: int) -> None:
        self._replica, self._path, self._n_bytes = replica, path, n_bytes
        self._n_fetched = 0
        self._held: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._whole: ShardBytes | None = None

    @property
    def stays(self) -> bool:
        """Once the whole shard is here."""
        return self._whole is not None and self._whole.stays

    @property
    def file(self) -> tuple[int, ...] | None:
        """Of the whole shard, once that is here."""
        return None if self._whole is None else self._whole.file

    def __len__(self) -> int:
        return self._n_bytes

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        start, stop, _ = which.indices(self._n_bytes)
        if self._whole is None and (held := self._held.get((start, stop))) is not None:
            return held
        if self._n_fetched + stop - start > self._n_bytes:
            self.will_need()
        if self._whole is not None:
            return self._whole[start:stop]
        found = np.frombuffer(self._replica.read_range(self._path, start, stop), np.uint8)
        self._n_fetched += len(found)
        self._held = dict([*self._held.items(), ((start, stop), found)][-HELD:])
        return found

    def will_need(self) -> None:
        """Fetch the whole shard, unless that has been done."""
        if self._whole is None:
            if not self._path.exists():
                self._replica.fetch(self._path)
            self._whole = shard_bytes(self._path, self._n_bytes)
        self._whole.will_need()


def mapping_of(file: BinaryIO) -> mmap.mmap | None:
    """A read-only map of an open file; None where its file system has no maps.

    Raises:
        ValueError: the file is empty.
    """
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None


ADVICE = " (run 'permafrost verify', then 'permafrost repair')"
"""For whoever has not run them."""


def damaged(path: Path) -> str:
    """Beginning of every message about a shard that is not what its receipt says."""
    return f"the shard {public_name(path)} is damaged{ADVICE}"
