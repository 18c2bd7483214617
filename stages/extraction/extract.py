"""Fill the feature store: run the frozen backbone for exactly the cells that are missing.

The caller of `extract` holds the store's lease: it lays texts out in segments, gives their cells to a pool
and commits the drafts that come back. Who computes them is the pool's matter: this process, where the next
segment is computed while the last one is flushed, or others.

Memory: the weights, one padded batch and at most `buffer_bytes` of captured rows waiting for the disk,
however many texts there are. A batch that does not fit in memory is split, and the run goes on.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np

from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.computing import SPLIT_FROM
from permafrost.stages.extraction.device import device_name
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.lengths import measure, refuse_too_long
from permafrost.stages.extraction.planning import (
    DISK_MARGIN,
    ExtractionPlan,
    bytes_needed,
    plan_extraction,
)
from permafrost.stages.extraction.recipes.inputs import numbered_as
from permafrost.stages.extraction.segment_pool import InProcess, SegmentPool, SegmentTask, task_of
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.extraction.writing import DiskThread
from permafrost.storage.errors import DiskFullError
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.projections import (
    has_projection,
    renew_metadata,
    write_projection,
)
from permafrost.storage.features.record import has_record
from permafrost.storage.features.segment_drafts import SealedSegment
from permafrost.storage.features.segments import build_table, pack
from permafrost.storage.features.store import ALWAYS, DERIVED, FeatureStore, store_folder
from permafrost.storage.features.turns import GIVE_WAY_S, Turn
from permafrost.storage.features.waiting import writing_when_free
from permafrost.storage.features.writing import StoreWriter, writing
from permafrost.storage.paths import require_writable
from permafrost.storage.progress import WAIT, Progress
from permafrost.storage.replica import replica_of

LoadBackbone = Callable[[], Backbone]
COMMITTING = 4
"""Threads that commit: flushes that wait for a disk side by side cost it little more than one."""


@dataclass(frozen=True)
class ExtractReport:
    """What an extraction did."""

    store: FeatureStore
    n_segments: int
    """Segments in which at least one cell was computed."""
    n_cells: int
    n_tokens: int
    """Tokens that went through the backbone; 0 means that it was not loaded."""
    n_truncated: int
    """Requested texts that are longer than max_length and were truncated."""
    split_from: int | None = None
    """Smallest batch, in padded tokens, that ran out of memory and was split; None if all batches fitted."""


def extract(
    target: ExtractTarget,
    home: Path,
    texts: Sequence[str],
    digests: Sequence[str],
    runtime: ExtractRuntime,
    progress: Progress,
    *,
    axes: Axes | None = None,
    load: LoadBackbone | None = None,
    pool: SegmentPool | None = None,
) -> ExtractReport:
    """Ensure that the store has every array of `target` for every text; computes only what is missing.

    Args:
        target: resolved identity and arrays.
        home: where feature stores lie.
        texts: unique texts.
        digests: their content digests, same order.
        runtime: device and memory bounds.
        progress: receives the number of tokens done.
        axes: segment sizes of a new store; chosen from the width if not given.
        load: how to load the backbone; it is called only if something is missing; with a pool, only
            for output projections.
        pool: computes the segments. Without one this process does, as it always does where the home mirrors
            an object store: drafts are files, which other machines would not see.

    Raises:
        InputError: a text is longer than max_length and `runtime` refuses such texts, the home is not
            writable, or there is no such device.
        StoreBusyError: another process is writing to this store.
        DiskFullError: the arrays cannot fit (nothing is started), or the disk fills up during the run
            (committed segments stay).
        OverflowRangeError: an activation does not fit the storage dtype.
    """
    if runtime.too_long == "refuse":
        refuse_too_long(target, home, texts, digests, runtime.block_texts)
    plan = plan_extraction(target, home, texts, digests, axes=axes, block_texts=runtime.block_texts)
    if plan.n_bytes:
        require_writable(home, "the home")
    require_room(plan, home)
    root = store_folder(home, target.identity.store_id)
    if plan.nothing_to_do and has_record(root):
        store = FeatureStore.open(root, expect=target.identity)
        if all(has_projection(store, k) for k in target.projected_blocks):
            n_truncated = _n_truncated(store, digests, runtime.block_texts)
            return ExtractReport(store, 0, 0, 0, n_truncated)
    if pool is None:
        device_name(runtime.device)  # a name that is wrong makes no store
    load = cache(load or _loader(target, runtime))
    store = FeatureStore.create_or_open(
        home,
        target.identity,
        target.store_sizes,
        {"source": target.files.source, "revision": target.files.revision or ""},
        codec=target.codec,
        axes=axes,
    )
    done, busy, computing = _Done(), runtime.busy, None
    try:
        while True:
            with _writer(store, busy, progress) as writer:
                if computing is None:
                    # Only now: who has the backbone's GPU waits for no store.
                    computing = _pool(target, root, runtime, pool, load)
                progress.start("extract", max(plan.n_tokens - done.n_tokens, 0), "tokens")
                turn = Turn(store)
                cells = turn.items(_laid_out(writer, target, texts, digests, runtime.block_texts))
                _compute(writer, target, cells, runtime, computing, progress, done)
                for k in target.projected_blocks:
                    if not has_projection(store, k):
                        write_projection(
                            store, k, *output_projection(load(), k), writer.require_lease
                        )
                renew_metadata(store, writer.require_lease)
            if not turn.is_over:
                break
            progress.finish()
            progress.start(WAIT, 0, "")
            time.sleep(GIVE_WAY_S)
            progress.finish()
            busy = "wait"
    finally:
        progress.finish()
    n_truncated = _n_truncated(store, digests, runtime.block_texts)
    return ExtractReport(
        store, done.n_segments, done.n_cells, done.n_tokens, n_truncated, done.split_from
    )


def recompute_cells(
    store: FeatureStore,
    target: ExtractTarget,
    cells: Mapping[int, tuple[str, ...]],
    runtime: ExtractRuntime,
    progress: Progress,
    *,
    load: LoadBackbone | None = None,
    pool: SegmentPool | None = None,
) -> int:
    """Compute the missing `cells` of existing segments, for repair; returns the number of tokens computed.

    Raises:
        StoreBusyError: another process is writing to this store.
    """
    total = sum(store.segment(s).n_tokens for s in cells)
    try:
        with _writer(store, runtime.busy, progress) as writer:
            pool = _pool(target, store.root, runtime, pool, load or _loader(target, runtime))
            progress.start("repair", total, "tokens")
            done = _Done()
            _compute(writer, target, cells.items(), runtime, pool, progress, done)
            return done.n_tokens
    finally:
        progress.finish()


def _writer(
    store: FeatureStore, busy: Literal["end", "wait"], progress: Progress
) -> contextlib.AbstractContextManager[StoreWriter]:
    """The store's writer; waits for another one if it is to."""
    return writing(store) if busy == "end" else writing_when_free(store, progress)


class _Done:
    """What came back from a pool; a segment that came twice counts once."""

    def __init__(self) -> None:
        self._segments = set[int]()
        self.n_cells = self.n_tokens = 0
        self.split_from: int | None = None
        """Padded tokens from which on batches were split, as they ran out of memory."""

    def add(self, sealed: SealedSegment) -> None:
        if sealed.segment not in self._segments:
            self._segments.add(sealed.segment)
            self.n_cells += len(sealed.cells.keys() - set(DERIVED))
            self.n_tokens += sealed.n_tokens
        if (split := sealed.provenance.get(SPLIT_FROM)) is not None:
            self.split_from = min(int(split), self.split_from or int(split))

    def __contains__(self, segment: int) -> bool:
        return segment in self._segments

    @property
    def n_segments(self) -> int:
        return len(self._segments)


def _compute(
    writer: StoreWriter,
    target: ExtractTarget,
    cells: Iterable[tuple[int, tuple[str, ...]]],
    runtime: ExtractRuntime,
    pool: SegmentPool,
    progress: Progress,
    done: _Done,
) -> None:
    """Have the cells of each segment computed, and commit them as they come back."""
    given: list[int] = []

    def tasks() -> Iterator[SegmentTask]:
        for number, arrays in cells:
            given.append(number)
            yield task_of(writer.assign(number, arrays), target, runtime)

    # Commits wait for the disk, so they have threads of their own: a segment always the same one.
    with contextlib.ExitStack() as stack:
        commits = [stack.enter_context(DiskThread()) for _ in range(COMMITTING)]
        sealed_segments = stack.enter_context(contextlib.closing(pool.compute(tasks(), progress)))
        for sealed in sealed_segments:
            commits[sealed.segment % COMMITTING].submit(partial(writer.commit, sealed))
            done.add(sealed)
    assert all(number in done for number in given), "the pool lost a segment"


def _pool(
    target: ExtractTarget,
    root: Path,
    runtime: ExtractRuntime,
    pool: SegmentPool | None,
    load: LoadBackbone,
) -> SegmentPool:
    if pool is not None and replica_of(root) is None:
        return pool
    # Before texts are laid out, so that a bad device or bad weights are reported first.
    return InProcess(target, load(), runtime)


def require_room(plan: ExtractionPlan, home: Path) -> None:
    """Raises: DiskFullError: the disk under `home` has less room than the plan needs."""
    existing = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if (needed := bytes_needed(plan.n_bytes)) > free:
        largest = max(plan.bytes_per_array, key=plan.bytes_per_array.__getitem__)
        raise DiskFullError(
            f"this extraction writes about {plan.n_bytes:,} bytes ({plan.n_tokens:,} tokens, most of it "
            f"{largest} with {plan.bytes_per_array[largest]:,}) and {DISK_MARGIN:,} are left free: it needs "
            f"{needed:,}, but {existing} has {free:,} free; nothing was started. "
            "Capture fewer layers, use a smaller --store-dtype, or another --home"
        )


def _loader(target: ExtractTarget, runtime: ExtractRuntime) -> LoadBackbone:
    return partial(load_backbone, target.files, target.identity.compute_dtype, runtime.device)


def _n_truncated(store: FeatureStore, digests: Sequence[str], block_texts: int) -> int:
    blocks = range(0, len(digests), block_texts)
    return sum(int(store.locate(digests[at : at + block_texts]).truncated.sum()) for at in blocks)


def _laid_out(
    writer: StoreWriter,
    target: ExtractTarget,
    texts: Sequence[str],
    digests: Sequence[str],
    block_texts: int,
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The missing cells of each segment of these texts, laid out a block of texts at a time, when the blocks
    before are given out."""
    store = writer.store
    given: set[int] = set()
    for at in range(0, len(texts), block_texts):
        block = slice(at, at + block_texts)
        with numbered_as(range(len(texts))[block]):
            _add_missing_texts(writer, target, texts[block], digests[block])
        where = store.locate(digests[block], (*ALWAYS, *target.arrays))
        # What was given out for an earlier block may not be committed yet.
        segments = sorted(set(where.segment.tolist()) - given)
        given.update(segments)
        cells = store.missing_cells(segments, target.arrays)
        writer.declare(target.arrays)
        yield from cells.items()


def _add_missing_texts(
    writer: StoreWriter, target: ExtractTarget, texts: Sequence[str], digests: Sequence[str]
) -> None:
    """Tokenise the texts that the store does not know and give them segments."""
    store = writer.store
    new = np.flatnonzero(store.locate(digests).segment < 0)
    if not len(new):
        return
    with numbered_as(new.tolist()):
        measured = measure(target, [texts[i] for i in new.tolist()])
    for indices in pack(measured.lengths, store.record.axes):
        number = writer.next_number()
        table = build_table(
            number,
            store.record.axes,
            [texts[int(i)] for i in new[indices]],
            measured.lengths[indices],
            measured.span_start[indices],
            measured.span_end[indices],
            measured.truncated[indices],
        )
        writer.add_segment(table, number)
