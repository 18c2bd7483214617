"""One shard of a Zarr v3 array: written once and whole, read by mapping its bytes.

A shard is its encoded inner chunks, each followed by its crc32c, then an index of (offset, size)
pairs and the index's crc32c. So the local reader maps the file and, where nothing is compressed, hands
out the raw bytes; a chunk's checksum is verified the first time the chunk is touched.
"""

import contextlib
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from permafrost.storage.disk_errors import disk_errors_named, require_damage
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.layout import Codec
from permafrost.storage.features.shard_bytes import damaged, shard_bytes

CRC_BYTES = 4
_ABSENT = np.uint64(2**64 - 1)

_RUN_BYTES = 2048
"""Mean length of consecutive rows from which copying runs beats picking rows one by one."""

_CHECKED_BYTES = 1 << 24
"""How much of a file is in memory at a time while its checksum is made."""


@dataclass(frozen=True)
class ShardSeal:
    """What a receipt records of a written shard."""

    n_bytes: int
    crc32c: int
    """Of the whole file."""
    chunk_crc32c: tuple[int, ...]
    """Of the encoded bytes of each inner chunk that holds rows."""


class ShardWriter:
    """Writes one shard front to back into `draft`, which has to be renamed to `path` when it is sealed.

    Memory: one inner chunk. Rows arrive in order, in any portions; full chunks that are contiguous
    in the given rows are written without a copy.

    Raises:
        DiskFullError: from any call, naming `path`; the draft is removed.
    """

    def __init__(
        self,
        draft: Path,
        path: Path,
        *,
        n_rows: int,
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunk_rows: int,
        shard_rows: int,
        codec: Codec,
        fill: float | bool,
    ) -> None:
        assert 0 < n_rows <= shard_rows, f"{n_rows} rows for a shard of {shard_rows}"
        self.draft, self._path, self._codec, self._fill = draft, path, codec, fill
        self._n_rows, self._received = n_rows, 0
        self._index = np.full((shard_rows // chunk_rows, 2), _ABSENT, dtype="<u8")
        self._chunk_rows, self._row_shape, self._dtype = chunk_rows, row_shape, dtype
        # Only between the first rows and the seal: a writer may be opened long before.
        self._buffer: NDArray[Any] | None = None
        self._buffered = 0
        self._crcs: list[int] = []
        self._file_crc, self._offset = 0, 0
        with disk_errors_named(path):
            self._fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            if codec == "none":
                row_bytes = dtype.itemsize * math.prod(row_shape)
                size = uncompressed_bytes(n_rows, row_bytes, chunk_rows, shard_rows)
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
        # NumPy would cast: float32 beyond the range of float16 to infinity, int64 to other numbers.
        assert (rows.dtype, rows.shape[1:]) == (self._dtype, self._row_shape), (
            f"rows {rows.dtype} {rows.shape} into a shard of {self._dtype} {list(self._row_shape)}"
        )
        self._received += len(rows)
        assert self._received <= self._n_rows, (
            f"{self._received} rows into a shard of {self._n_rows}"
        )
        chunk_rows = self._chunk_rows
        with self._closing_on_error():
            while len(rows):
                if self._buffered == 0 and len(rows) >= chunk_rows:
                    self._write_chunk(np.ascontiguousarray(rows[:chunk_rows], self._dtype))
                    rows = rows[chunk_rows:]
                    continue
                if self._buffer is None:
                    self._buffer = np.empty((chunk_rows, *self._row_shape), dtype=self._dtype)
                n = min(chunk_rows - self._buffered, len(rows))
                self._buffer[self._buffered : self._buffered + n] = rows[:n]
                self._buffered += n
                rows = rows[n:]
                if self._buffered == chunk_rows:
                    self._write_chunk(self._buffer)
                    self._buffered = 0

    def seal(self) -> ShardSeal:
        """Write the last chunk and the index, and fsync."""
        assert self._received == self._n_rows, f"{self._received} of {self._n_rows} rows arrived"
        with self._closing_on_error():
            if self._buffered:
                assert self._buffer is not None, "buffered rows lie in the buffer"
                self._buffer[self._buffered :] = self._fill
                self._write_chunk(self._buffer)
            self._buffer = None
            index = self._index.tobytes()
            self._write(index + crc32c(index).to_bytes(CRC_BYTES, "little"))
            os.ftruncate(self._fd, self._offset)
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
        return ShardSeal(self._offset, self._file_crc, tuple(self._crcs))

    def abandon(self) -> None:
        """Drop the draft."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.draft.unlink(missing_ok=True)

    def _write_chunk(self, chunk: NDArray[Any]) -> None:
        encoded = Zstd(level=1).encode(chunk) if self._codec == "zstd" else chunk.data.cast("B")
        crc = crc32c(encoded)
        self._index[len(self._crcs)] = (self._offset, len(encoded) + CRC_BYTES)
        self._crcs.append(crc)
        self._write(encoded)
        self._write(crc.to_bytes(CRC_BYTES, "little"))

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


@dataclass(frozen=True)
class Checked:
    """Which chunks of a shard have been verified, and in which file."""

    file: tuple[int, ...] | None
    """See `ShardBytes.file`."""
    crc32c: int
    """Of the whole file, as the receipt has it."""
    chunks: NDArray[np.bool_]


class ShardRows:
    """Rows of one committed shard, in storage order, from decoded chunks of `chunk_rows` rows.

    Through a memory map, and a chunk is verified when it is first touched. Where the file system has no
    maps (some network and FUSE ones), a chunk is read and verified when it is asked for, and one is held. Of
    a shard in an object store that is not here the chunks that are asked for are fetched and verified.

    Raises:
        CorruptDataError: from any call; what is on disk differs from what the receipt recorded.
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
        self._bytes = shard_bytes(path, seal.n_bytes)
        tail = self._bytes[-index_bytes(shard_rows // chunk_rows) :].tobytes()
        self._index = chunk_index(path, tail)
        self._verified = np.zeros(len(seal.chunk_crc32c), dtype=bool)

    @property
    def checked(self) -> Checked:
        """What has been verified."""
        return Checked(self._bytes.file, self._seal.crc32c, self._verified)

    def trust(self, earlier: Checked) -> None:
        """Do not verify again what was verified when the shard was open before, if it is the same file."""
        now = self.checked
        if now.file is not None and (now.file, now.crc32c) == (earlier.file, earlier.crc32c):
            self._verified = earlier.chunks

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows `[start, stop)` of the shard; a view of its chunk when they lie in one chunk."""
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
        """Most rows will be read soon: a mapped file is read ahead, a shard in an object store is fetched."""
        self._bytes.will_need()

    def verify(self) -> None:
        """Read every byte: the file's checksum and each chunk's.

        Raises:
            CorruptDataError: names the file and, where it is known, the first chunk that differs.
        """
        self.will_need()
        for i in range(len(self._seal.chunk_crc32c)):
            self._chunk(i)
        crc = 0
        for start in range(0, len(self._bytes), _CHECKED_BYTES):
            crc = crc32c(self._bytes[start : start + _CHECKED_BYTES].data, crc)
        if crc != self._seal.crc32c:
            raise CorruptDataError(
                f"{damaged(self._path)}: the checksum of the file does not match"
            )

    def _chunk(self, i: int) -> NDArray[Any]:
        """Decoded rows of chunk `i`, `[chunk_rows, *row_shape]`, checked against the receipt."""
        offset, size = self._index[i].tolist()
        stays = (
            self._bytes.stays
        )  # asked first: bytes that were taken before they stay would not be these
        raw = self._bytes[offset : offset + size - CRC_BYTES]
        if not (stays and self._verified[i]):
            check_chunk(self._path, self._seal, i, raw.data)
            self._verified[i] = stays
        if self._codec == "zstd":
            raw = np.frombuffer(Zstd().decode(raw), np.uint8)
        shape = (self._chunk_rows, *self._row_shape)
        if raw.nbytes != self._dtype.itemsize * math.prod(shape):
            raise CorruptDataError(
                f"{damaged(self._path)}: chunk {i} has {raw.nbytes:,} bytes, {self._dtype} {list(shape)} has "
                f"others; or the store's own sizes are wrong"
            )
        return raw.view(self._dtype).reshape(shape)


def unlike(path: Path, seal: ShardSeal, n_chunks: int) -> str | None:
    """How a shard of `n_chunks` slots differs from its seal, in words; None if it does not.

    Reads the index and the checksum behind each chunk. The chunks themselves are not read: on a network file
    system that would bring the whole shard here.

    Raises:
        UnreadableError: the disk or the system failed to read it.
    """
    try:
        with path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes != seal.n_bytes:
                return f"it has {n_bytes:,} bytes, its seal says {seal.n_bytes:,}"
            tail = index_bytes(n_chunks)
            index = chunk_index(path, os.pread(file.fileno(), tail, n_bytes - tail))
            for i, crc in enumerate(seal.chunk_crc32c):
                end = sum(index[i].tolist())
                if end > n_bytes:
                    return f"it has no chunk {i}"
                stored = os.pread(file.fileno(), CRC_BYTES, end - CRC_BYTES)
                if stored != crc.to_bytes(CRC_BYTES, "little"):
                    return f"the checksum of chunk {i} is not that of its seal"
    except OSError as error:
        require_damage(path, error)
        return f"it cannot be read ({error.strerror})"
    except CorruptDataError:
        return "the checksum of its chunk index does not match"
    return None


def index_bytes(n_chunks: int) -> int:
    """Bytes at the end of a shard that hold its chunk index and the index's checksum."""
    return n_chunks * 16 + CRC_BYTES


def uncompressed_bytes(n_rows: int, row_bytes: int, chunk_rows: int, shard_rows: int) -> int:
    """Bytes of a shard with `n_rows` rows under the codec `none`; its last chunk is written whole."""
    n_chunks = -(-n_rows // chunk_rows)
    return n_chunks * (chunk_rows * row_bytes + CRC_BYTES) + index_bytes(shard_rows // chunk_rows)


def chunk_index(path: Path, tail: bytes) -> NDArray[np.uint64]:
    """Offset and size of each chunk, `[n_chunks, 2]`, from the last `index_bytes` of the shard at `path`.

    Raises:
        CorruptDataError: the index's checksum does not match.
    """
    index, crc = tail[:-CRC_BYTES], tail[-CRC_BYTES:]
    if len(index) % 16 or crc32c(index) != int.from_bytes(crc, "little"):
        raise CorruptDataError(f"{damaged(path)}: the checksum of its chunk index does not match")
    return np.frombuffer(index, dtype="<u8").reshape(-1, 2)


def check_chunk(path: Path, seal: ShardSeal, i: int, encoded: memoryview) -> None:
    """Compare the encoded bytes of chunk `i` with the receipt.

    Not with the trailer in the shard, and not through the file's checksum alone: data followed by its own
    crc32c has the same crc32c whatever it is, so a whole but foreign shard would pass both.

    Raises:
        CorruptDataError: they differ.
    """
    if crc32c(encoded) != seal.chunk_crc32c[i]:
        raise CorruptDataError(f"{damaged(path)}: the checksum of chunk {i} does not match")
