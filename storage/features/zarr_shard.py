"""One shard read through the Zarr API, where the file cannot be mapped (some network and FUSE file systems).

Slower than the map by one to two orders (decision 0002), and the same rows: the file is read once from end to
end and every chunk compared with its receipt, because an engine knows only the checksums inside the shard.
"""

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.shard import (
    CRC_BYTES,
    ShardRows,
    ShardSeal,
    check_chunk,
    chunk_index,
    damaged,
    index_bytes,
)


class ZarrShard(ShardRows):
    """Rows of one committed shard, as slices of its Zarr array; memory is one decoded chunk.

    Args:
        array: the folder of the Zarr array that `path` is a shard of.
        first_row: where the shard starts in that array.

    Raises:
        CorruptDataError: the file's size or checksum differs from what the receipt recorded, or the
            array's metadata does not describe it.
    """

    def __init__(
        self,
        path: Path,
        array: Path,
        *,
        first_row: int,
        seal: ShardSeal,
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunk_rows: int,
        shard_rows: int,
    ) -> None:
        super().__init__(path, row_shape=row_shape, dtype=dtype, chunk_rows=chunk_rows)
        self._seal, self._first_row, self._shard_rows = seal, first_row, shard_rows
        self.verify()
        self._rows = _opened(array)
        self._held = (-1, np.empty((0, *row_shape), dtype))

    def will_need(self) -> None:
        """Nothing: the file was read from end to end when it was opened."""

    def verify(self) -> None:
        """Read every byte: the file's checksum and each chunk's.

        Raises:
            CorruptDataError: names the file and the first chunk that differs.
        """
        try:
            with self._path.open("rb") as file:
                self._verify(file)
        except FileNotFoundError as error:
            raise CorruptDataError(f"{damaged(self._path)}: the file is missing") from error
        except OSError as error:
            raise CorruptDataError(f"{damaged(self._path)}: {error.strerror}") from error

    def _verify(self, file: BinaryIO) -> None:
        n_bytes = file.seek(0, os.SEEK_END)
        if n_bytes != self._seal.n_bytes:
            raise CorruptDataError(
                f"{damaged(self._path)}: it has {n_bytes:,} bytes, its receipt says {self._seal.n_bytes:,}"
            )
        n_chunks = self._shard_rows // self._chunk_rows
        file.seek(-index_bytes(n_chunks), os.SEEK_END)
        tail = file.read()
        crc = 0
        for i, (offset, size) in enumerate(
            chunk_index(self._path, tail)[: len(self._seal.chunk_crc32c)].tolist()
        ):
            file.seek(offset)
            chunk = memoryview(file.read(size))
            check_chunk(self._path, self._seal, i, chunk[:-CRC_BYTES])
            crc = crc32c(chunk, crc)
        if crc32c(tail, crc) != self._seal.crc32c:
            raise CorruptDataError(
                f"{damaged(self._path)}: the checksum of the file does not match"
            )

    def _chunk(self, i: int) -> NDArray[Any]:
        if self._held[0] != i:
            at = self._first_row + i * self._chunk_rows
            rows = np.asarray(self._rows[at : at + self._chunk_rows])
            expected = (self._chunk_rows, *self._row_shape)
            if rows.shape != expected or rows.dtype != self._dtype:
                raise CorruptDataError(
                    f"{damaged(self._path)}: its array gives {rows.dtype} {list(rows.shape)} for a chunk, "
                    f"the store says {self._dtype} {list(expected)}"
                )
            self._held = (i, rows)
        return self._held[1]


def _opened(array: Path) -> Any:
    # Imported here: zarr-python takes longer than the rest of the store, and hardly anybody comes here.
    import zarr

    try:
        return zarr.open_array(array, mode="r")  # pyright: ignore[reportUnknownMemberType]
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise CorruptDataError(
            f"the metadata of {array} cannot be read ({error}); run 'permafrost repair'"
        ) from error
