"""Receipts: written last for a cell (segment x array), and the only proof that it is complete."""

import contextlib
import math
import os
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.storage.durable import remove, write_durably
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.shard import ShardSeal
from permafrost.storage.replica import public_name
from permafrost.storage.sealed import read_versioned, sealed_bytes

RECEIPT_FORMAT = 1
_RECEIPT = ".json"
INODE_BITS = (1 << 63) - 1
"""Of an inode's number, which is unsigned, what a signed one holds."""


class Statistics(BaseModel):
    """Moments and range of the values of a cell; can be merged over batches (Chan et al., 1979)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = 0
    nonfinite: int = 0
    mean: float = 0.0
    variance: float = 0.0
    """Biased (divided by count)."""
    min: float = math.inf
    max: float = -math.inf

    def merged(self, other: "Statistics") -> "Statistics":
        """Statistics of both samples together."""
        n = self.count + other.count
        if n == 0:
            return self
        shift = other.mean - self.mean
        weight = other.count / n
        return Statistics(
            count=n,
            nonfinite=self.nonfinite + other.nonfinite,
            mean=self.mean + shift * weight,
            variance=self.variance * (1 - weight)
            + other.variance * weight
            + shift * shift * weight * (1 - weight),
            min=min(self.min, other.min),
            max=max(self.max, other.max),
        )


def measure(values: NDArray[Any]) -> Statistics:
    """Statistics of one batch, of any shape; moments and range are over its finite values."""
    wide = values.astype(np.float64, copy=False) if values.dtype.kind in "iub" else values
    finite = np.isfinite(wide)
    if not finite.all():
        statistics = measure(wide[finite])
        return statistics.model_copy(update={"nonfinite": int(values.size - statistics.count)})
    if values.size == 0:
        return Statistics()
    mean = float(wide.mean(dtype=np.float64))
    flat = wide.reshape(-1).astype(np.float32, copy=False) - np.float32(mean)
    return Statistics(
        count=int(values.size),
        mean=mean,
        variance=float(np.dot(flat, flat)) / values.size,
        min=float(wide.min()),
        max=float(wide.max()),
    )


class Receipt(BaseModel):
    """The content of a committed cell, how to check it and where it came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = RECEIPT_FORMAT
    store_id: str
    segment: int
    segment_sha256: str
    """SHA-256 of the segment's Parquet file: a receipt is void if the layout changes."""
    array: str
    n_texts: int
    n_rows: int
    shard: str
    """Path of the shard, relative to the store."""
    shard_bytes: int
    shard_crc32c: int
    chunk_rows: int
    chunk_crc32c: tuple[int, ...]
    statistics: Statistics
    provenance: dict[str, str]
    """Library versions, device, attention implementation, time: recorded, never part of identity."""

    @property
    def seal(self) -> ShardSeal:
        """The part that verifies the shard's bytes."""
        return ShardSeal(self.shard_bytes, self.shard_crc32c, self.chunk_crc32c)


def receipt_path(root: Path, segment: int, array: str) -> Path:
    """The path of a cell's receipt."""
    return root / "receipts" / f"{segment:06d}" / f"{array}.json"


def write_receipt(root: Path, receipt: Receipt) -> None:
    """Commit a cell. The file also has `checksum`, the digest of all other fields."""
    path = receipt_path(root, receipt.segment, receipt.array)
    write_durably(path, sealed_bytes(receipt.model_dump(mode="json")))


def read_receipt(root: Path, segment: int, array: str) -> Receipt:
    """Read the receipt of a committed cell.

    Raises:
        NotFoundError: there is none, or not any more.
        InputError: it has another format version.
        CorruptDataError: it is damaged, or belongs to another cell.
    """
    path = receipt_path(root, segment, array)
    try:
        fields, has_checksum = read_versioned(path, "receipt", RECEIPT_FORMAT)
        receipt = Receipt.model_validate(fields)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{array} of segment {segment} is not in the store {root.name[:12]} any more; it was "
            "removed while it "
            "was being read (by drop, gc or repair), and an extraction makes it again"
        ) from error
    except (CorruptDataError, ValidationError) as error:
        raise _damaged(path) from error
    if not has_checksum:
        raise _damaged(path)
    if (receipt.segment, receipt.array) != (segment, array):
        raise CorruptDataError(
            f"the receipt {public_name(path)} is of {receipt.array} in segment {receipt.segment}, expected "
            f"{array} in segment {segment}; 'permafrost repair' computes this cell again"
        )
    return receipt


def _damaged(path: Path) -> CorruptDataError:
    return CorruptDataError(
        f"the receipt {public_name(path)} is damaged; 'permafrost repair' computes this cell again"
    )


def committed_arrays(root: Path, segment: int) -> frozenset[str]:
    """Names of the arrays that have a receipt in a segment."""
    return listed_receipts(root, segment).arrays


class ListedReceipts(NamedTuple):
    """The receipts of a segment, as they were listed."""

    folders: tuple[str, ...]
    """Below the segment's receipts; the first one has an empty name."""
    marks: "array[int]"
    """Three numbers for each folder, taken before it was listed; see `marks_of_folder`."""
    arrays: frozenset[str]


def listed_receipts(root: Path, segment: int) -> ListedReceipts:
    """List the receipts of a segment; there are none in what cannot be listed."""
    base = f"{root}/receipts/{segment:06d}/"
    folders, marks, arrays = [""], array("q"), list[str]()
    for inside in folders:  # which grows
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            marks.extend(marks_of_folder(base + inside))
            with os.scandir(base + inside) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.name.endswith(_RECEIPT):
                        arrays.append(inside + entry.name.removesuffix(_RECEIPT))
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(f"{inside}{entry.name}/")
    return ListedReceipts(tuple(folders), marks, frozenset(arrays))


def marks_of_folder(folder: str, inside: int | None = None) -> tuple[int, int, int]:
    """Inode and times of a folder, which change when something in it comes or goes; `inside` is the
    descriptor of the folder that its name is relative to."""
    s = os.stat(folder, dir_fd=inside)
    return s.st_ino & INODE_BITS, s.st_mtime_ns, s.st_ctime_ns


def revoke_receipt(root: Path, segment: int, array: str) -> None:
    """Mark a cell as missing again; always done before its shard is touched."""
    remove(receipt_path(root, segment, array))
