"""Segments: the assignment of rows to texts, kept in one Parquet file per segment."""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from permafrost.storage.durable import create_durably, read_whole, write_durably
from permafrost.storage.errors import CorruptDataError, InputError, StoreBusyError
from permafrost.storage.features.layout import Axes
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import offsets_of
from permafrost.storage.replica import public_name

SCHEMA = pa.schema(
    [
        ("digest", pa.string()),
        ("text", pa.string()),
        ("n_tokens", pa.int32()),
        ("token_start", pa.int64()),
        ("text_row", pa.int64()),
        ("span_start", pa.int32()),
        ("span_end", pa.int32()),
        ("truncated", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class SegmentLayout:
    """How many rows a segment has, without its texts."""

    number: int
    sha256: str
    """Of its table."""
    n_texts: int
    n_tokens: int

    def rows(self, axis: str) -> int:
        """Rows used on `axis`."""
        return self.n_tokens if axis == "token" else self.n_texts


@dataclass(frozen=True)
class Segment:
    """The texts of one segment, in the order of their tokens."""

    number: int
    table: pa.Table
    """Columns as in SCHEMA; `token_start` and `text_row` are positions on the whole axes."""
    sha256: str
    """SHA-256 of the Parquet file; every receipt of the segment repeats it."""

    @property
    def n_texts(self) -> int:
        """Number of texts, which is the number of rows used on the text axis."""
        return self.table.num_rows

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text `[n_texts]` int64."""
        return self.table.column("n_tokens").to_numpy().astype(np.int64)

    @property
    def n_tokens(self) -> int:
        """Number of token slots used."""
        return int(self.lengths.sum())

    @property
    def layout(self) -> SegmentLayout:
        """Its rows."""
        return SegmentLayout(self.number, self.sha256, self.n_texts, self.n_tokens)

    def rows(self, axis: str) -> int:
        """Rows used on `axis`."""
        return self.n_tokens if axis == "token" else self.n_texts


def segment_path(root: Path, number: int) -> Path:
    """The path of a segment's table."""
    return root / "segments" / f"{number:06d}.parquet"


def table_copy(root: Path, number: int) -> Path:
    """The path of the copy of a segment's table; stores of earlier versions get it when they are next
    written."""
    return root / "copies" / f"{number:06d}.parquet"


def numbered_tables(folder: Path) -> set[int]:
    """The numbers of the tables in a folder, which need not be there."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 Path makes 10^5 paths of them
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return set()
    parts = (name.partition(".") for name in names)
    return {int(n) for n, _, suffix in parts if n.isdigit() and suffix == "parquet"}


def table_copies(root: Path) -> set[int]:
    """Numbers of the segments whose table has a copy."""
    return numbered_tables(root / "copies")


def build_table(
    number: int,
    axes: Axes,
    texts: Sequence[str],
    lengths: NDArray[np.int64],
    span_start: NDArray[np.int64],
    span_end: NDArray[np.int64],
    truncated: NDArray[np.bool_],
) -> pa.Table:
    """Assign rows to each text, contiguous on both axes, in the given order."""
    assert lengths.sum() <= axes.segment_tokens
    assert len(texts) <= axes.segment_texts
    columns = [
        pa.array([text_digest(t) for t in texts], pa.string()),
        pa.array(texts, pa.string()),
        pa.array(lengths, pa.int32()),
        pa.array(offsets_of(lengths)[:-1] + number * axes.segment_tokens, pa.int64()),
        pa.array(np.arange(len(texts)) + number * axes.segment_texts, pa.int64()),
        pa.array(span_start, pa.int32()),
        pa.array(span_end, pa.int32()),
        pa.array(truncated, pa.bool_()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def write_segment(root: Path, number: int, table: pa.Table) -> Segment:
    """Publish the table of a new segment, and its copy.

    Raises:
        StoreBusyError: another process or machine has just added a segment of this number.
    """
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    content = buffer.getvalue()
    if not create_durably(segment_path(root, number), content):
        raise StoreBusyError(
            f"another process has just added segment {number} to the store {root.name[:12]}; what was "
            f"committed stays. Run the same command again"
        )
    write_durably(table_copy(root, number), content)
    return Segment(number, table, hashlib.sha256(content).hexdigest())


def read_segment(root: Path, number: int, columns: Sequence[str] | None = None) -> Segment:
    """Read the table of a segment.

    Raises:
        CorruptDataError: the file is damaged or not a segment table.
    """
    path = segment_path(root, number)
    try:
        content = read_whole(path)
        # Not `read_table`, which uses Arrow's threads: a process that exits soon after could be aborted
        # ("terminate called without an active exception", exit code 134).
        with pq.ParquetFile(
            io.BytesIO(content), page_checksum_verification=True, pre_buffer=False
        ) as file:
            table = file.read(None if columns is None else list(columns), use_threads=False)
    except (CorruptDataError, pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise CorruptDataError(
            f"the segment table {public_name(path)} is damaged ({error}); 'permafrost repair' puts its copy "
            f"in place or, without one, drops this segment, so that the next extraction computes its texts "
            f"again"
        ) from error
    wanted = SCHEMA if columns is None else pa.schema([SCHEMA.field(c) for c in columns])
    if table.schema.remove_metadata() != wanted:
        raise CorruptDataError(
            f"the segment table {public_name(path)} has the columns {table.schema.names}, expected "
            f"{wanted.names}"
        )
    return Segment(number, table, hashlib.sha256(content).hexdigest())


def pack(lengths: NDArray[np.int64], axes: Axes) -> list[NDArray[np.int64]]:
    """Pack texts into segments: longest first, filling each segment until the next text does not fit.

    Sorting by length leaves batches within a segment nearly free of padding. Ties keep the given order, so
    the packing is a function of the lengths alone.

    Args:
        lengths: tokens of each text `[n]`.
        axes: capacity of a segment.

    Returns:
        Indices of the texts of each segment, in storage order.

    Raises:
        InputError: a text does not fit into a segment.
    """
    if len(lengths) and lengths.max() > axes.segment_tokens:
        raise InputError(
            f"a text has {lengths.max()} tokens but a segment holds {axes.segment_tokens}; lower "
            f"max_length or create the store with larger segments"
        )
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    segments: list[NDArray[np.int64]] = []
    at = 0
    while at < len(order):
        used = ends[at - 1] if at else 0
        fits = int(np.searchsorted(ends, used + axes.segment_tokens, side="right"))
        stop = min(fits, at + axes.segment_texts)
        segments.append(order[at:stop])
        at = stop
    return segments
