"""One shard of a Zarr v3 array: written once and whole, read by mapping its bytes.

A shard is its encoded inner chunks, each followed by its crc32c, then an index of (offset, size)
pairs and the index's crc32c. So the local reader maps the file and, where nothing is compressed, hands
out the raw bytes; a chunk's checksum is verified the first time the chunk is touched.
"""

import contextlib
import mmap
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from storage.durable import disk_errors_named, draft_path, publish
from storage.errors import CorruptDataError
from storage.features.layout import Codec

_CRC_BYTES = 4
_ABSENT = np.uint64(2**64 - 1)

_RUN_BYTES = 2048
"""Mean length of consecutive rows from which copying runs beats picking rows one by one."""


@dataclass(frozen=True)
class ShardSeal:
    """What a receipt records of a written shard."""

    n_bytes: int
    crc32c: int
    """Of the whole file."""
    chunk_crc32c: tuple[int, ...]
    """Of the encoded bytes of each inner chunk that holds rows."""


class ShardWriter:
    """Writes one shard front to back under a draft name; `seal` publishes it.

    Memory: one inner chunk. Rows arrive in order, in any portions; full chunks that are contiguous
    in the given rows are written without a copy.

    Raises:
        DiskFullError: from any call; the draft is removed and nothing is published.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_rows: int,
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunk_rows: int,
        shard_rows: int,
        codec: Codec,
    ) -> None:
        assert 0 < n_rows <= shard_rows, f"{n_rows} rows for a shard of {shard_rows}"
        self._path, self._codec = path, codec
        self._n_rows, self._received = n_rows, 0
        self._index = np.full((shard_rows // chunk_rows, 2), _ABSENT, dtype="<u8")
        self._buffer = np.zeros((chunk_rows, *row_shape), dtype=dtype)
        self._buffered = 0
        self._crcs: list[int] = []
        self._file_crc, self._offset = 0, 0
        self._draft = draft_path(path)
        with disk_errors_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            if codec == "none":
                n_chunks = -(-n_rows // chunk_rows)
                size = (
                    n_chunks * (self._buffer.nbytes + _CRC_BYTES) + self._index.nbytes + _CRC_BYTES
                )
                # Reserving up front finds a full disk before compute is spent and keeps files unfragmented.
                with self._closing_on_error():
                    _reserve(self._fd, size)

    @contextlib.contextmanager
    def _closing_on_error(self):
        try:
            with disk_errors_named(self._path):
                yield
        except BaseException:
            self.abandon()
            raise

    def append(self, rows: NDArray[Any]) -> None:
        """Append `rows` `[n, *row_shape]`, already in the storage dtype."""
        self._received += len(rows)
        assert self._received <= self._n_rows, (
            f"{self._received} rows into a shard of {self._n_rows}"
        )
        chunk_rows = len(self._buffer)
        with self._closing_on_error():
            while len(rows):
                if self._buffered == 0 and len(rows) >= chunk_rows:
                    self._write_chunk(np.ascontiguousarray(rows[:chunk_rows], self._buffer.dtype))
                    rows = rows[chunk_rows:]
                    continue
                n = min(chunk_rows - self._buffered, len(rows))
                self._buffer[self._buffered : self._buffered + n] = rows[:n]
                self._buffered += n
                rows = rows[n:]
                if self._buffered == chunk_rows:
                    self._write_chunk(self._buffer)
                    self._buffered = 0

    def seal(self) -> ShardSeal:
        """Write the last chunk and the index, fsync, and rename to the final name."""
        assert self._received == self._n_rows, f"{self._received} of {self._n_rows} rows arrived"
        with self._closing_on_error():
            if self._buffered:
                self._buffer[self._buffered :] = 0
                self._write_chunk(self._buffer)
            index = self._index.tobytes()
            self._write(index + crc32c(index).to_bytes(_CRC_BYTES, "little"))
            os.ftruncate(self._fd, self._offset)
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
            publish(self._draft, self._path)
        return ShardSeal(self._offset, self._file_crc, tuple(self._crcs))

    def abandon(self) -> None:
        """Drop the draft."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._draft.unlink(missing_ok=True)

    def _write_chunk(self, chunk: NDArray[Any]) -> None:
        encoded = Zstd(level=1).encode(chunk) if self._codec == "zstd" else chunk.data.cast("B")
        crc = crc32c(encoded)
        self._index[len(self._crcs)] = (self._offset, len(encoded) + _CRC_BYTES)
        self._crcs.append(crc)
        self._write(encoded)
        self._write(crc.to_bytes(_CRC_BYTES, "little"))

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        self._file_crc = crc32c(view, self._file_crc)
        self._offset += len(view)
        while len(view):
            view = view[os.write(self._fd, view) :]


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:
        # Only some file systems can reserve; the writes themselves will tell if there is no room.
        if isinstance(error, OSError) and error.errno not in _CANNOT_RESERVE:
            raise


_CANNOT_RESERVE = {95, 22, 38}  # EOPNOTSUPP, EINVAL, ENOSYS


class MappedShard:
    """Rows of one committed shard, through a memory map.

    Raises:
        CorruptDataError: size, index or a chunk's checksum differs from what the receipt recorded.
    """

    def __init__(
        self,
        path: Path,
        *,
        seal: ShardSeal,
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunk_rows: int,
        shard_rows: int,
        codec: Codec,
    ) -> None:
        self._path, self._seal, self._codec = path, seal, codec
        self._row_shape, self._dtype, self._chunk_rows = row_shape, dtype, chunk_rows
        try:
            with path.open("rb") as file:
                self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError) as error:
            raise CorruptDataError(f"{_damaged(path)}: the file is missing or empty") from error
        self._map = np.frombuffer(self._file, np.uint8)
        if len(self._map) != seal.n_bytes:
            raise CorruptDataError(
                f"{_damaged(path)}: it has {len(self._map):,} bytes, its receipt says {seal.n_bytes:,}"
            )
        index_bytes = (shard_rows // chunk_rows) * 16
        tail = self._map[-(index_bytes + _CRC_BYTES) :].tobytes()
        if crc32c(tail[:index_bytes]) != int.from_bytes(tail[index_bytes:], "little"):
            raise CorruptDataError(
                f"{_damaged(path)}: the checksum of its chunk index does not match"
            )
        self._index = np.frombuffer(tail, dtype="<u8", count=index_bytes // 8).reshape(-1, 2)
        self._verified = np.zeros(len(seal.chunk_crc32c), dtype=bool)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows `[start, stop)` of the shard; a view of the map when they lie in one chunk."""
        first, last = start // self._chunk_rows, (stop - 1) // self._chunk_rows
        if first == last:
            at = first * self._chunk_rows
            return self._chunk(first)[start - at : stop - at]
        out = np.empty((stop - start, *self._row_shape), dtype=self._dtype)
        for i in range(first, last + 1):
            at = i * self._chunk_rows
            lo, hi = max(start, at), min(stop, at + self._chunk_rows)
            out[lo - start : hi - start] = self._chunk(i)[lo - at : hi - at]
        return out

    def take(self, rows: NDArray[np.int64], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The given rows of the shard, in that order; only the chunks that hold them are touched.

        They go into `out` `[len(rows), *row_shape]`, in the storage dtype, if that is given.
        """
        if out is None:
            out = np.empty((len(rows), *self._row_shape), dtype=self._dtype)
        owner = rows // self._chunk_rows
        cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(owner) != 0)) + 1
        if out.nbytes > _RUN_BYTES * len(cuts):
            for lo, hi in pairwise([0, *cuts.tolist(), len(rows)]):
                i, at = divmod(int(rows[lo]), self._chunk_rows)
                out[lo:hi] = self._chunk(i)[at : at + hi - lo]
            return out
        for i in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == i)
            out[mine] = self._chunk(i)[rows[mine] - i * self._chunk_rows]
        return out

    def will_need(self) -> None:
        """Have the kernel read the whole file ahead, in pieces larger than a page fault brings."""
        if hasattr(mmap, "MADV_WILLNEED"):
            self._file.madvise(mmap.MADV_WILLNEED)

    def verify(self) -> None:
        """Read every byte: the file's checksum and each chunk's.

        Raises:
            CorruptDataError: names the file and the first chunk that differs.
        """
        for i in range(len(self._seal.chunk_crc32c)):
            self._chunk(i)
        if crc32c(self._map.data) != self._seal.crc32c:
            raise CorruptDataError(
                f"{_damaged(self._path)}: the checksum of the file does not match"
            )

    def _chunk(self, i: int) -> NDArray[Any]:
        offset, size = self._index[i].tolist()
        raw = self._map[offset : offset + size - _CRC_BYTES]
        if not self._verified[i]:
            # Against the receipt, not the trailer: a whole but foreign shard is damage too.
            if crc32c(raw.data) != self._seal.chunk_crc32c[i]:
                raise CorruptDataError(
                    f"{_damaged(self._path)}: the checksum of chunk {i} does not match"
                )
            self._verified[i] = True
        if self._codec == "zstd":
            raw = np.frombuffer(Zstd().decode(raw), np.uint8)
        return raw.view(self._dtype).reshape(-1, *self._row_shape)


def _damaged(path: Path) -> str:
    return f"the shard {path} is damaged (run 'permafrost verify', then 'permafrost repair')"
