"""The write side of a feature store: one writer at a time, layout first, receipt last."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from permafrost.storage.durable import (
    DRAFT_PREFIX,
    disk_errors_named,
    holds,
    json_bytes,
    remove_any,
    rewrite,
)
from permafrost.storage.errors import CorruptDataError, StoreBusyError
from permafrost.storage.features.copies import keep_copies
from permafrost.storage.features.layout import ZARR_GROUP, Axes, widen
from permafrost.storage.features.rebuilding import require_agreement
from permafrost.storage.features.receipts import Receipt, Statistics, measure, write_receipt
from permafrost.storage.features.record import read_record, record_path
from permafrost.storage.features.segments import Segment, write_segment
from permafrost.storage.features.shard import ShardSeal, ShardWriter
from permafrost.storage.features.store import ALWAYS, FeatureStore
from permafrost.storage.lease import Lease
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import replica_of


@contextlib.contextmanager
def writing(store: FeatureStore) -> Generator["StoreWriter"]:
    """Hold the store's only write lease; the kernel frees it when the process dies.

    On an object store the lease is an object too, which another machine takes over if it has not been renewed
    for a few minutes.

    Raises:
        StoreBusyError: another process (or another writer in this one) holds it.
    """
    path = lock_path(store)
    with disk_errors_named(path):
        # A link would lock a file elsewhere, which another home may lock as well.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = path.read_text(encoding="utf-8", errors="replace") or "{}"
            raise StoreBusyError(
                f"the store {store.root} is being written by another process ({holder.strip()}); wait until "
                f"it ends, or use another --home. Nothing was changed"
            ) from error
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        os.ftruncate(fd, 0)
        os.write(
            fd,
            json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}).encode(),
        )
        _remove_drafts(store.root)
        if (replica := replica_of(store.root)) is None:
            _require_right(store)
            yield StoreWriter(store, None)
            return
        with replica.lease(store.root / "writer.lease") as lease:
            # Another machine may have written since this home was attached.
            replica.pull(store.root, SilentProgress())
            store.forget()
            _require_right(store)
            yield StoreWriter(store, lease)
    finally:
        os.close(fd)


def lock_path(store: FeatureStore) -> Path:
    """The file that a writer locks; what it says about the holder is for people to read."""
    return store.root / "writer.lock"


def _require_right(store: FeatureStore) -> None:
    """Check the record against the disk and the arrays first, since all writes follow it.

    Raises:
        CorruptDataError: the record is damaged, or disagrees with the arrays.
    """
    if read_record(store.root) != store.record:
        raise CorruptDataError(
            f"{record_path(store.root)} changed while the store was open; run the same command again"
        )
    require_agreement(store)
    keep_copies(store)


def _remove_drafts(root: Path) -> None:
    """Remove what killed writers left behind; safe for the lease holder, as nobody else is writing."""
    for path in root.rglob(f"{DRAFT_PREFIX}*"):
        remove_any(path)


class StoreWriter:
    """What the lease holder may do."""

    def __init__(self, store: FeatureStore, lease: Lease | None) -> None:
        self.store, self._lease = store, lease

    def add_segment(self, table: pa.Table, number: int) -> Segment:
        """Publish the layout of a new segment; all of its cells are missing until they are filled."""
        assert number == self.store.n_slots(), f"segment {number} is not the next one"
        if self._lease is not None:
            self._lease.require()
        return write_segment(self.store.root, number, table)

    def declare(self, arrays: Sequence[str]) -> None:
        """Write the Zarr metadata of `arrays` and of the existing arrays so that it covers every segment.

        All arrays of an axis have the same length, or xarray would refuse to open them together.
        """
        n_segments = self.store.n_slots()
        root = self.store.zarr_path
        for array in sorted({*ALWAYS, *arrays, *self.store.arrays()}):
            path = root / array / "zarr.json"
            for folder in Path(array).parents:
                group = root / folder / "zarr.json"
                if not holds(group, json_bytes(ZARR_GROUP)):
                    rewrite(group, json_bytes(ZARR_GROUP))
            wanted = json_bytes(self.store.array_metadata(array, n_segments))
            if not holds(path, wanted):
                rewrite(path, wanted)

    def fill(
        self, segment: int, arrays: Sequence[str], provenance: Mapping[str, str]
    ) -> "SegmentFill":
        """Start writing the cells `arrays` of `segment`; use the result as a context manager."""
        committed = set(arrays) & self.store.committed(segment)
        assert not committed, f"{sorted(committed)} of segment {segment} are already committed"
        layout = self.store.segment(segment)
        return SegmentFill(self.store, layout, arrays, provenance, self._lease)


class SegmentFill:
    """Writes some cells of one segment; `commit` publishes them, leaving the context without it drops all."""

    def __init__(
        self,
        store: FeatureStore,
        segment: Segment,
        arrays: Sequence[str],
        provenance: Mapping[str, str],
        lease: Lease | None,
    ) -> None:
        self._store, self._segment, self._provenance = store, segment, dict(provenance)
        self._lease = lease
        self._axes: Axes = store.record.axes
        self._statistics = dict.fromkeys(arrays, Statistics())
        self._writers: dict[str, ShardWriter] = {}
        self._unreceipted: list[Path] = []
        """Shards already under their final names, but without a receipt yet, in the order of the receipts."""
        try:
            for array in arrays:
                self._writers[array] = self._open(array)
        except BaseException:
            self.abandon()
            raise

    def _open(self, array: str) -> ShardWriter:
        spec = self._store.spec(array)
        return ShardWriter(
            self._store.shard_path(self._segment.number, array),
            n_rows=self._segment.rows(spec.axis),
            row_shape=() if spec.width is None else (spec.width,),
            dtype=spec.storage,
            chunk_rows=spec.chunk_rows(self._axes),
            shard_rows=spec.segment_rows(self._axes),
            codec=self._store.record.codec,
        )

    def append(self, array: str, rows: NDArray[Any], statistics: Statistics | None = None) -> None:
        """Append the next rows of `array`, in the storage dtype; computes the statistics if not given."""
        self._writers[array].append(rows)
        logical = self._store.spec(array).dtype
        # bfloat16 arrives as uint16 bits, whose moments are meaningless.
        numbers = widen(rows, logical) if logical == "bfloat16" else rows
        measured = measure(numbers) if statistics is None else statistics
        self._statistics[array] = self._statistics[array].merged(measured)

    def note(self, name: str, value: str) -> None:
        """Add to the provenance of the receipts."""
        self._provenance[name] = value

    def commit(self) -> None:
        """Publish every shard, then every receipt."""
        if self._lease is not None:
            self._lease.require()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        seals: dict[str, ShardSeal] = {}
        for array, writer in self._writers.items():
            self._unreceipted.append(self._store.shard_path(self._segment.number, array))
            seals[array] = writer.seal()
        for array, seal in seals.items():
            spec = self._store.spec(array)
            write_receipt(
                self._store.root,
                Receipt(
                    store_id=self._store.store_id,
                    segment=self._segment.number,
                    segment_sha256=self._segment.sha256,
                    array=array,
                    n_texts=self._segment.n_texts,
                    n_rows=self._segment.rows(spec.axis),
                    shard=self._store.shard_path(self._segment.number, array)
                    .relative_to(self._store.root)
                    .as_posix(),
                    shard_bytes=seal.n_bytes,
                    shard_crc32c=seal.crc32c,
                    chunk_rows=spec.chunk_rows(self._axes),
                    chunk_crc32c=seal.chunk_crc32c,
                    statistics=self._statistics[array],
                    provenance={**self._provenance, "committed": now},
                ),
            )
            self._unreceipted.pop(0)
        self._writers.clear()

    @property
    def is_open(self) -> bool:
        """Neither committed nor abandoned."""
        return bool(self._writers)

    def abandon(self) -> None:
        """Drop everything that was not committed; does nothing after `commit`."""
        for writer in self._writers.values():
            writer.abandon()
        for path in self._unreceipted:
            path.unlink(missing_ok=True)
        self._writers.clear()
        self._unreceipted.clear()

    def __enter__(self) -> "SegmentFill":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()
