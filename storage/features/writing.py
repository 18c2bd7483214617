"""The write side of a feature store: one writer at a time, layout first, receipt last.

Any process may compute cells and write them to drafts (`segment_drafts`); the writer gives the cells out and
commits the drafts.
"""

import contextlib
import datetime
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import DRAFT_PREFIX, draft_path, is_of_dead_process
from permafrost.storage.durable import (
    holds,
    holds_sha256,
    json_bytes,
    make_folder,
    publish,
    remove_any,
    rewrite,
    set_aside,
)
from permafrost.storage.errors import (
    CorruptDataError,
    DiskFullError,
    RemovedError,
    StoreBusyError,
)
from permafrost.storage.features.copies import keep_copies
from permafrost.storage.features.groups import write_groups
from permafrost.storage.features.rebuilding import require_agreement
from permafrost.storage.features.receipts import Receipt, write_receipt
from permafrost.storage.features.record import has_record, read_record, record_path
from permafrost.storage.features.segment_drafts import (
    Assignment,
    SealedCell,
    SealedSegment,
    SegmentDraft,
)
from permafrost.storage.features.segments import (
    Segment,
    SegmentLayout,
    read_segment,
    segment_path,
    write_segment,
)
from permafrost.storage.features.shard import unlike
from permafrost.storage.features.store import ALWAYS, DERIVED, FeatureStore
from permafrost.storage.lease import UNTIL_FREE, Lease
from permafrost.storage.locked_files import lock, unlocking
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import public_name, replica_of

LEASE = "writer.lease"


@contextlib.contextmanager
def writing(store: FeatureStore) -> Generator["StoreWriter"]:
    """Hold the store's only write lease; the kernel frees it when the process dies.

    On an object store the lease is an object too, which another machine takes over if it has not been renewed
    for a few minutes.

    Raises:
        StoreBusyError: another process (or another writer in this one) holds it.
        RemovedError: the store was removed since it was opened.
    """
    path = lock_path(store)
    with disk_errors_named(path):
        try:
            # A link would lock a file elsewhere, which another home may lock as well.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            store.require_there()
            raise
    with unlocking(fd):
        try:
            lock(fd)
        except BlockingIOError as error:
            raise _busy(store, path) from error
        _require_in_place(fd, path, store)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        # For people to read: who frees a full disk needs the lock, and no room for this.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps(holder).encode())
        _remove_drafts(store.root)
        if (replica := replica_of(store.root)) is None:
            _require_right(store)
            with contextlib.closing(StoreWriter(store, None)) as writer:
                yield writer
                writer.finish()
            return
        with replica.lease(store.root / LEASE) as lease:
            # Another machine may have written since this home was attached.
            replica.pull(store.root, SilentProgress())
            store.forget()
            _require_right(store)
            with contextlib.closing(StoreWriter(store, lease)) as writer:
                yield writer
                writer.finish()


def lock_path(store: FeatureStore) -> Path:
    """The file that a writer locks; what it says about the holder is for people to read."""
    return store.root / "writer.lock"


def remove_ended_lock(store: FeatureStore) -> None:
    """Remove the lock file of a writer that has ended, which names its machine; that of one at work stays."""
    path = lock_path(store)
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with unlocking(fd):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Not that of a writer who came meanwhile, after another one had removed this file.
        if _is_in_place(fd, path):
            path.unlink(missing_ok=True)


def _is_in_place(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _require_in_place(fd: int, path: Path, store: FeatureStore) -> None:
    """Check that the locked file is that of the store: whoever removes a store holds its lock, and takes the
    file away with it.

    Raises:
        RemovedError: the store was removed between opening and locking.
    """
    store.require_there()
    if not _is_in_place(fd, path):
        raise RemovedError(
            f"the store {public_name(store.root)} was removed and made again since it was opened; run the "
            "same command again"
        )


def named_writer(lock: Path) -> str:
    """Who holds a lock, as far as its file says so."""
    try:
        found = json.loads(lock.read_text(encoding="utf-8"))
        return f"process {found['pid']} on {found['host']}, since {found['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"  # which has not written its name yet


def _busy(store: FeatureStore, lock: Path) -> StoreBusyError:
    writer = named_writer(lock)
    error = StoreBusyError(
        f"the store {public_name(store.root)} is being written by {writer}; {UNTIL_FREE}. Nothing was changed"
    )
    error.writer = writer
    return error


def _require_right(store: FeatureStore) -> None:
    """Check the record against the disk and the arrays first, since all writes follow it.

    Raises:
        CorruptDataError: the record is damaged, or disagrees with the arrays.
    """
    if read_record(store.root) != store.record:
        raise CorruptDataError(
            f"{public_name(record_path(store.root))} changed while the store was open; run the same command "
            "again"
        )
    require_agreement(store)
    # Whoever frees a full disk needs none; it is the end of a writing that asks for them.
    with contextlib.suppress(DiskFullError):
        keep_copies(store)


def _remove_drafts(root: Path) -> None:
    """Remove what killed writers left behind; safe for the lease holder, as nothing that is still computed
    for one of them can be committed."""
    for path in _drafts(root):
        if path.is_dir() and not path.is_symlink():
            _set_aside(path)
        else:
            remove_any(path)


def has_dead_drafts(root: Path) -> bool:
    """Whether a process that has ended left something in a store, which the next writer removes."""
    return any(map(is_of_dead_process, _drafts(root)))


def _drafts(root: Path) -> list[Path]:
    """Whatever is named like a draft, outermost first; `rglob` takes minutes for 10^5 segments."""
    found, folders = list[Path](), [os.fspath(root)]
    while folders:
        # A store that is not there (yet) has none.
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(DRAFT_PREFIX):
                    found.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return found


def _set_aside(folder: Path) -> None:
    """Remove a folder of drafts; it is renamed first, so that no other process adds files meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        set_aside(folder)


class StoreWriter:
    """What the lease holder may do."""

    def __init__(self, store: FeatureStore, lease: Lease | None) -> None:
        self.store, self._lease = store, lease
        self._drafts: Path | None = None
        """Folder of the drafts; created when the first cells are assigned."""
        self._declared = False
        self._next: int | None = None
        self._assigned: dict[int, SegmentLayout] = {}
        """Of segments that were written or given out, until they are committed."""

    def next_number(self) -> int:
        """The number of the next new segment."""
        if self._next is None:
            self._next = self.store.n_slots()
        return self._next

    def require_lease(self) -> None:
        """Raises: StoreBusyError: another machine may hold the lease now; call it before every change."""
        if self._lease is not None:
            self._lease.require()

    def add_segment(self, table: pa.Table, number: int) -> Segment:
        """Publish the layout of a new segment; all of its cells are missing until they are filled."""
        assert number == self.next_number(), f"segment {number} is not the next one"
        self.require_lease()
        segment = write_segment(self.store.root, number, table)
        self._next = number + 1
        self._assigned[number] = segment.layout
        self.store.added(segment)
        return segment

    def declare(self, arrays: Sequence[str]) -> None:
        """Write the Zarr metadata of `arrays` and of the existing arrays so that it covers every segment.

        All arrays of an axis have the same length, or xarray would refuse to open them together.

        Raises:
            StoreBusyError: another machine may have appended segments that this one does not know of.
        """
        self.require_lease()
        self._next = n_segments = self.store.n_slots()
        for array in sorted(
            {*ALWAYS, *DERIVED, *arrays, *self.store.arrays(), *self.store.declared()}
        ):
            path = self.store.zarr_path / array / "zarr.json"
            wanted = json_bytes(self.store.array_metadata(array, n_segments))
            if not holds(path, wanted):
                self.require_lease()
                rewrite(path, wanted)
        write_groups(self.store, check=self.require_lease)
        self._declared = True

    def _derive(self) -> None:
        """Write what follows from the tables of the segments that lack it."""
        for number, committed in self.store.committed_in(self.store.tables()).items():
            if committed.issuperset(DERIVED):
                continue
            try:
                segment = self.store.segment(number)
            except CorruptDataError:
                continue  # told of by those who read it
            if segment.n_tokens:
                with SegmentDraft(self.store, self.assign(number, ()), {}) as draft:
                    self.commit(draft.seal())

    def assign(self, segment: int, arrays: Sequence[str]) -> Assignment:
        """Assign missing cells of a segment to whoever computes them, in this or in another process, and with
        them what follows from its table and is missing.

        Raises:
            CorruptDataError: something else is in the place of a shard.
        """
        there = self.store.committed(segment)
        committed = there.intersection(arrays)
        assert not committed, f"{sorted(committed)} of segment {segment} are already committed"
        if segment not in self._assigned:
            self._assigned[segment] = self.store.segment(segment).layout
        layout = self._assigned[segment]
        derived = tuple(a for a in DERIVED if a not in there and layout.n_tokens)
        for array in (*derived, *arrays):
            path = self.store.shard_path(segment, array)
            with disk_errors_named(path):
                make_folder(path.parent)
        if self._drafts is None:
            with disk_errors_named(self.store.root):
                self._drafts = draft_path(self.store.root.absolute() / "segments")
                self._drafts.mkdir()
        return Assignment(
            root=self.store.root.absolute(),
            drafts=self._drafts,
            segment=segment,
            segment_sha256=layout.sha256,
            n_tokens=layout.n_tokens,
            arrays=tuple(arrays),
            derived=derived,
        )

    def commit(self, sealed: SealedSegment) -> None:
        """Publish every shard of a sealed draft, then every receipt.

        A cell that has been committed since (computed twice) stays as it is. May run in other threads than
        the other methods, but for each segment always in the same one.

        Raises:
            CorruptDataError: the draft is not there, not whole, or not one for this store, this segment or
                this writer; nothing was changed.
        """
        self.require_lease()
        root, number = self.store.root, sealed.segment
        segment = self._layout(number)
        committed = self.store.committed(number)
        due = {a: cell for a, cell in sealed.cells.items() if a not in committed}
        self._require_fitting(sealed, due, segment)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            for array, cell in due.items():
                path = self.store.shard_path(number, array)
                self.require_lease()
                with disk_errors_named(path):
                    publish(self._draft(cell), path)
            for array, cell in due.items():
                self.require_lease()
                write_receipt(root, self._receipt(segment, array, cell, sealed.provenance, now))
        except BaseException:
            # A receipt may be in place although writing it failed: only its flush did.
            for array in due.keys() - self.store.committed(number):
                with contextlib.suppress(OSError):
                    self.store.shard_path(number, array).unlink(missing_ok=True)
            raise
        for cell in sealed.cells.values():
            shutil.rmtree(self._draft(cell).parent, ignore_errors=True)
        self._assigned.pop(number, None)

    def _layout(self, number: int) -> SegmentLayout:
        """Of a segment's table as it is on the disk."""
        known = self._assigned.get(number)
        path = segment_path(self.store.root, number)
        if known is not None and holds_sha256(path, known.sha256):
            return known
        return read_segment(self.store.root, number, ["n_tokens"]).layout

    def _receipt(
        self,
        segment: SegmentLayout,
        array: str,
        cell: SealedCell,
        provenance: Mapping[str, str],
        now: str,
    ) -> Receipt:
        spec, path = self.store.spec(array), self.store.shard_path(segment.number, array)
        return Receipt(
            store_id=self.store.store_id,
            segment=segment.number,
            segment_sha256=segment.sha256,
            array=array,
            n_texts=segment.n_texts,
            n_rows=segment.rows(spec.axis),
            shard=path.relative_to(self.store.root).as_posix(),
            shard_bytes=cell.seal.n_bytes,
            shard_crc32c=cell.seal.crc32c,
            chunk_rows=spec.chunk_rows(self.store.record.axes),
            chunk_crc32c=cell.seal.chunk_crc32c,
            statistics=cell.statistics,
            provenance={**provenance, "committed": now},
        )

    def _draft(self, cell: SealedCell) -> Path:
        assert self._drafts is not None, "no cells were assigned"
        return self._drafts / cell.draft

    def _require_fitting(
        self, sealed: SealedSegment, due: Mapping[str, SealedCell], segment: SegmentLayout
    ) -> None:
        what = f"the draft of segment {sealed.segment} for the store {self.store.store_id[:12]}"
        end = "nothing of it was committed. Run the same command again"
        found, expected = (
            (sealed.store_id, sealed.segment_sha256),
            (self.store.store_id, segment.sha256),
        )
        if found != expected:
            raise CorruptDataError(
                f"{what} was written for the store {found[0][:12]} and the table {found[1][:12]}, but this "
                f"is the store {expected[0][:12]} with the table {expected[1][:12]}; {end}"
            )
        for array, cell in due.items():
            spec, axes = self.store.spec(array), self.store.record.axes
            chunk_rows = spec.chunk_rows(axes)
            n_chunks, slots = len(cell.seal.chunk_crc32c), spec.segment_rows(axes) // chunk_rows
            if n_chunks != -(-segment.rows(spec.axis) // chunk_rows):
                problem = f"it has {n_chunks} chunks for {segment.rows(spec.axis)} rows"
            elif self._drafts is None:
                problem = "this writer has assigned no cells"
            else:
                problem = unlike(self._drafts / cell.draft, cell.seal, slots)
            if problem is not None:
                raise CorruptDataError(
                    f"{what} is not whole: {array} ({cell.draft}): {problem}; {end}"
                )

    def finish(self) -> None:
        """Write what follows from the tables where it is missing (if arrays were declared), have the groups
        say what is complete now, and copy the tables that a killed writer left without a receipt and so
        without a copy; unless the store was removed."""
        if not (has_record(self.store.root) and self.store.n_slots()):
            return
        # Whoever has taken the lease over writes them.
        with contextlib.suppress(StoreBusyError):
            self.require_lease()
            if self._declared:
                self._derive()
            write_groups(self.store, check=self.require_lease)
            keep_copies(self.store)
            self.store.remember()

    def close(self) -> None:
        """Remove the drafts that were not committed, and their folder: a process that still computes for this
        writer has nowhere to write."""
        if self._drafts is not None:
            # What ended the writing is to be told, not that a folder could not be flushed.
            with contextlib.suppress(DiskFullError):
                _set_aside(self._drafts)
