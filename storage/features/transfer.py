"""Copying a part of a feature store to another home.

What arrives is bytes: tables, shards and the numbers of receipts, each checked before it counts; nothing of
it is executed. The target's own writer commits it, under its lease and receipts last, so that a kill leaves
whole cells and the next transfer goes on from there.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pyarrow as pa

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import owner
from permafrost.storage.errors import CorruptDataError, DiskFullError
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.parts import SegmentPlan, StorePart, TransferPlan, compare
from permafrost.storage.features.projections import read_projection, write_projection
from permafrost.storage.features.rebuilding import disagreements
from permafrost.storage.features.receipts import Receipt
from permafrost.storage.features.record import has_record
from permafrost.storage.features.segment_drafts import Assignment, SealedCell, SealedSegment
from permafrost.storage.features.segments import SCHEMA, Segment
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.features.verification import discard, table_problem
from permafrost.storage.features.waiting import writing_when_free
from permafrost.storage.features.writing import StoreWriter, has_dead_drafts, writing
from permafrost.storage.paths import require_writable
from permafrost.storage.progress import Progress
from permafrost.storage.replica import public_name, replica_of

AT_ONCE = 4
"""Cells that arrive at the same time."""
LAID_OUT_AT_ONCE = 64
"""Segments whose tables are written before their cells."""
PIECE_BYTES = 16 << 20
MARGIN_BYTES = 64 << 20
"""Room that stays free beside what is copied."""
_MB = 1e6

Moved = Callable[[int], None]


def plan_transfer(part: StorePart, home: Path) -> TransferPlan:
    """What `transfer` would copy; leaves nothing behind.

    Raises what `transfer` does before it starts: damage of the source, and a target that cannot be written to
    or has no room.
    """
    if problems := disagreements(part.source):
        raise CorruptDataError(
            f"{problems[0]}; nothing was copied. 'permafrost repair {part.source.store_id[:12]}' there puts "
            "the record right"
        )
    root = store_folder(home, part.source.store_id)
    plan = compare(part, FeatureStore.open(root) if has_record(root) else None)
    if _is_left(plan, home):
        if replica_of(home) is None:
            require_writable(home, "features")
        _require_room(plan, home)
    return plan


def transfer(
    part: StorePart, home: Path, progress: Progress, busy: Literal["end", "wait"] = "end"
) -> TransferPlan:
    """Copy what the store of the same identity under `home` lacks of a part; the store is created if needed.

    Args:
        part: of a store in another home.
        home: the target.
        progress: receives the megabytes that have arrived.
        busy: what to do if another process writes to the target's store.

    Returns:
        What was copied.

    Raises:
        CorruptDataError: something in the source is not what its receipt says, be it only as it arrived, or
            the target is damaged. Cells that were committed before stay.
        InputError: the target's store has other segments or another codec, or cannot be written to.
        StoreBusyError: another process is writing to the target's store.
        DiskFullError: there is no room for all of it (nothing was started), or there was none on the way.
    """
    plan, record = plan_transfer(part, home), part.source.record
    if not _is_left(plan, home):
        return plan
    target = FeatureStore.create_or_open(
        home,
        record.identity,
        record.sizes,
        record.backbone,
        codec=record.codec,
        axes=record.axes,
    )
    lease = writing(target) if busy == "end" else writing_when_free(target, progress)
    try:
        with lease as writer:
            # Another process may have written since the first look.
            plan = compare(part, target)
            progress.start("copy", plan.n_bytes / _MB, "MB")
            _copy(writer, plan, lambda n_bytes: progress.advance(n_bytes / _MB))
    finally:
        progress.finish()
    return plan


def _is_left(plan: TransferPlan, home: Path) -> bool:
    """Whether there is something to write."""
    if plan.segments or plan.projections:
        return True
    # What a copy left that failed at its end is removed by a writer, and there may be no other one.
    return has_dead_drafts(store_folder(home, plan.part.source.store_id))


def _require_room(plan: TransferPlan, home: Path) -> None:
    """A home on an object store needs room here for the cells under way only."""
    if replica_of(home) is not None or not plan.n_bytes:
        return
    existing = next(p for p in (home, *home.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if plan.n_bytes + MARGIN_BYTES > free:
        raise DiskFullError(
            f"{plan.n_bytes:,} bytes are to be copied and {MARGIN_BYTES:,} are left free: that needs "
            f"{plan.n_bytes + MARGIN_BYTES:,}, but {existing} has {free:,} free; nothing was started. "
            "Name fewer arrays, or another home"
        )


def _copy(writer: StoreWriter, plan: TransferPlan, moved: Moved) -> None:
    source, target = plan.part.source, writer.store
    if damaged := [d for segment in plan.segments for d in segment.damaged]:
        discard(writer, damaged)
    arrays = [*plan.bytes_of_arrays()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for at in range(0, len(plan.segments), LAID_OUT_AT_ONCE):
            block = plan.segments[at : at + LAID_OUT_AT_ONCE]
            numbers = [_laid_out(writer, source, segment) for segment in block]
            writer.declare(arrays)
            for segment, number in zip(block, numbers, strict=True):
                assigned = writer.assign(number, [*segment.cells])
                arriving = _Arriving(source, segment.source, target, assigned, moved)
                for sealed in pool.map(arriving.cell, segment.cells):
                    writer.commit(sealed)
                    _release(target, sealed)
    for k in plan.projections:
        write_projection(target, k, *read_projection(source, k), writer.require_lease)


def _laid_out(writer: StoreWriter, source: FeatureStore, plan: SegmentPlan) -> int:
    """The number of a segment in the target, which gets its table if it has none."""
    if plan.target is not None:
        return plan.target
    segment, axes = source.segment(plan.source), source.record.axes
    problem = table_problem(source, plan.source)
    if segment.n_tokens > axes.segment_tokens or segment.n_texts > axes.segment_texts:
        problem = f"segment {plan.source} has more rows than a segment may have"
    if problem is not None:
        raise CorruptDataError(
            f"{problem}; run 'permafrost verify {source.store_id[:12]}' in the home that it is from. What "
            "was copied before stays"
        )
    number = writer.next_number()
    return writer.add_segment(_renumbered(segment, number, axes), number).number


def _renumbered(segment: Segment, number: int, axes: Axes) -> pa.Table:
    """The table of a segment under another number: the same texts at the positions of that number."""
    by = number - segment.number
    shifts = {"token_start": by * axes.segment_tokens, "text_row": by * axes.segment_texts}
    columns = [
        pa.array(segment.table.column(name).to_numpy() + shifts[name], pa.int64())
        if name in shifts
        else segment.table.column(name).combine_chunks()
        for name in SCHEMA.names
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


class _Arriving:
    """Cells of one segment on their way into the drafts of the target's writer; used by several threads."""

    def __init__(
        self,
        source: FeatureStore,
        number: int,
        target: FeatureStore,
        assigned: Assignment,
        moved: Moved,
    ) -> None:
        self._source, self._number, self._target = source, number, target
        self._assigned, self._moved = assigned, moved

    def cell(self, array: str) -> SealedSegment:
        """The shard of a cell, whole, checked and on the disk.

        Raises:
            CorruptDataError: it is not what its receipt says.
        """
        receipt = self._source.checked_receipt(self._number, array)
        name = f"{self._assigned.segment:06d}-{owner()}-{uuid.uuid4().hex[:8]}"
        draft = self._assigned.drafts / name / array.replace("/", "-")
        with disk_errors_named(self._target.shard_path(self._assigned.segment, array)):
            draft.parent.mkdir()
            self._bring(receipt, draft)
            _flush(draft)
        made = receipt.provenance
        return SealedSegment(
            store_id=self._target.store_id,
            segment=self._assigned.segment,
            segment_sha256=self._assigned.segment_sha256,
            n_tokens=self._assigned.n_tokens,
            cells={
                array: SealedCell(
                    os.fspath(draft.relative_to(self._assigned.drafts)),
                    receipt.seal,
                    receipt.statistics,
                )
            },
            # The new receipt says when it was committed here.
            provenance={"computed": made.get("committed", "unknown"), **made},
        )

    def _bring(self, receipt: Receipt, draft: Path) -> None:
        path = self._source.shard_path(self._number, receipt.array)
        ways = _ways(path)
        while ways:
            try:
                ways.pop(0)(path, draft, self._moved)
                self._target.rows_at(draft, receipt).verify()
                return
            except (CorruptDataError, FileNotFoundError) as error:
                if not ways:
                    raise CorruptDataError(
                        f"{public_name(path)} did not arrive as its receipt says ({error}); it was not "
                        "copied, and what was copied before stays. Run 'permafrost verify "
                        f"{self._source.store_id[:12]}' in that home, or the same command again"
                    ) from error


def _ways(path: Path) -> list[Callable[[Path, Path, Moved], object]]:
    """How to bring the shard at `path`, the best first: what a network or an old copy spoilt may come right
    the second time."""
    replica = replica_of(path)
    if replica is None:
        return [_copied]
    return [_copied if path.exists() else replica.download, replica.download]


def _copied(path: Path, draft: Path, moved: Moved) -> None:
    with path.open("rb") as file, draft.open("wb") as out:
        while piece := file.read(PIECE_BYTES):
            out.write(piece)
            moved(len(piece))


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _release(target: FeatureStore, sealed: SealedSegment) -> None:
    """Free the room here of what is in an object store now; it is fetched again when it is read."""
    for array in sealed.cells:
        path = target.shard_path(sealed.segment, array)
        if replica_of(path) is not None:
            path.unlink(missing_ok=True)  # `verify` may be fetching it again
