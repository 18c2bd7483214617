"""Fill the feature store: run the frozen backbone over exactly the cells that are missing.

Compute and disk overlap: the backbone runs in the calling thread, one writer thread converts,
checksums and writes. Memory: the weights, one padded batch and at most `buffer_bytes` of captured
rows waiting for the disk.
"""

import platform
import queue
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import zarr
from numpy.typing import NDArray

from stages.extraction.backbone import Backbone, load_backbone
from stages.extraction.families import output_projection
from stages.extraction.forward import forward
from stages.extraction.planning import ExtractionPlan, plan_extraction
from stages.extraction.recipes import Encoded, encode
from stages.extraction.target import ExtractRuntime, ExtractTarget
from stages.extraction.token_budget import batch_tokens, batches
from stages.extraction.too_long import refuse_too_long, stored_as_cut
from storage.errors import (
    CorruptDataError,
    DiskFullError,
    OverflowRangeError,
    PermafrostError,
)
from storage.features.layout import SPAN, TOKEN_IDS, Axes
from storage.features.projections import has_projection, write_projection
from storage.features.receipts import Statistics
from storage.features.segments import Segment, build_table, pack
from storage.features.store import ALWAYS, FeatureStore, store_folder
from storage.features.writing import SegmentFill, StoreWriter, writing
from storage.progress import Progress
from storage.readers import read_rows

LoadBackbone = Callable[[], Backbone]

DISK_MARGIN = 64 << 20
"""Bytes that stay free beyond what an extraction is predicted to write."""


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
    """Of the texts asked for, how many are longer than max_length and were cut."""


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
) -> ExtractReport:
    """Make every array of `target` present for every text; computes what is missing and nothing else.

    Args:
        target: resolved identity and arrays.
        home: where feature stores lie.
        texts: unique texts.
        digests: their content digests, same order.
        runtime: device and memory bounds.
        progress: told the tokens done.
        axes: segment sizes of a store that is new; chosen from the width if not given.
        load: how to load the backbone; it is called only if something is missing.

    Raises:
        InputError: a text is longer than max_length, and `runtime` refuses that.
        StoreBusyError: another process writes to this store.
        DiskFullError: it cannot fit (nothing was started), or the disk filled up meanwhile (committed
            segments stay).
        OverflowRangeError: an activation does not fit the storage dtype.
    """
    if runtime.too_long == "refuse":
        refuse_too_long(target, home, texts, digests, runtime.block_texts)
    plan = plan_extraction(target, home, texts, digests)
    require_room(plan, home)
    root = store_folder(home, target.identity.store_id)
    if plan.nothing_to_do and (root / "store.json").exists():
        store = FeatureStore.open(root, expect=target.identity)
        if all(has_projection(store, k) for k in target.projected_blocks):
            return _report(store, digests, 0, 0, 0)
    # Before anything is written: what is wrong with the device or the weights is told first.
    backbone = (load or _loader(target, runtime))()
    store = FeatureStore.create_or_open(
        home,
        target.identity,
        target.store_sizes,
        {"source": target.files.source, "revision": target.files.revision or ""},
        codec=target.codec,
        axes=axes,
    )
    n_segments = n_cells = n_tokens = 0
    progress.start("extract", plan.n_tokens, "tokens")
    try:
        with writing(store) as writer, _DiskThread() as disk:
            for at in range(0, len(texts), runtime.block_texts):
                block = slice(at, at + runtime.block_texts)
                _add_missing_texts(writer, target, texts[block], digests[block])
                where = store.locate(digests[block])
                cells = store.missing_cells(sorted(set(where.segment.tolist())), target.arrays)
                writer.declare(target.arrays)
                n_tokens += _compute(writer, target, cells, backbone, disk, runtime, progress)
                n_cells += sum(map(len, cells.values()))
                n_segments += len(cells)
            for k in target.projected_blocks:
                if not has_projection(store, k):
                    write_projection(store, k, *output_projection(backbone, k))
    finally:
        progress.finish()
    return _report(store, digests, n_segments, n_cells, n_tokens)


def recompute_cells(
    store: FeatureStore,
    target: ExtractTarget,
    cells: Mapping[int, tuple[str, ...]],
    runtime: ExtractRuntime,
    progress: Progress,
    *,
    load: LoadBackbone | None = None,
) -> int:
    """Compute the missing `cells` of existing segments, for repair; returns the tokens computed.

    Raises:
        StoreBusyError: another process writes to this store.
    """
    backbone = (load or _loader(target, runtime))()
    total = sum(store.segment(s).n_tokens for s in cells)
    progress.start("repair", total, "tokens")
    try:
        with writing(store) as writer, _DiskThread() as disk:
            return _compute(writer, target, cells, backbone, disk, runtime, progress)
    finally:
        progress.finish()


def _compute(
    writer: StoreWriter,
    target: ExtractTarget,
    cells: Mapping[int, tuple[str, ...]],
    backbone: Backbone,
    disk: "_DiskThread",
    runtime: ExtractRuntime,
    progress: Progress,
) -> int:
    n_tokens = 0
    for number, arrays in cells.items():
        work = _SegmentWork(target, writer.store.segment(number), arrays, runtime, progress)
        n_tokens += work.run(writer, backbone, disk)
    return n_tokens


def require_room(plan: ExtractionPlan, home: Path) -> None:
    """Raises: DiskFullError: the disk under `home` has less room than the plan needs."""
    existing = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    need = plan.n_bytes + (DISK_MARGIN if plan.n_bytes else 0)
    if need > free:
        largest = max(plan.bytes_per_array, key=plan.bytes_per_array.__getitem__)
        raise DiskFullError(
            f"this extraction writes about {plan.n_bytes:,} bytes ({plan.n_tokens:,} tokens, most of it "
            f"{largest} with {plan.bytes_per_array[largest]:,}), but {existing} has {free:,} free; nothing "
            f"was started. Capture fewer layers, use a smaller --store-dtype, or another --home"
        )


def _loader(target: ExtractTarget, runtime: ExtractRuntime) -> LoadBackbone:
    return partial(load_backbone, target.files, target.identity.compute_dtype, runtime.device)


def _report(
    store: FeatureStore, digests: Sequence[str], n_segments: int, n_cells: int, n_tokens: int
) -> ExtractReport:
    truncated = int(stored_as_cut(store, store.locate(digests)).sum())
    return ExtractReport(store, n_segments, n_cells, n_tokens, truncated)


def _add_missing_texts(
    writer: StoreWriter, target: ExtractTarget, texts: Sequence[str], digests: Sequence[str]
) -> None:
    """Tokenise the texts that the store does not know and give them segments."""
    store = writer.store
    new = np.flatnonzero(store.locate(digests).segment < 0)
    if not len(new):
        return
    encoded = encode(
        target.recipe, target.tokenizer, [texts[i] for i in new.tolist()], target.max_length
    )
    for members in pack(encoded.token_ids.lengths, store.record.axes):
        number = store.n_slots()
        table = build_table(
            number,
            store.record.axes,
            [texts[int(i)] for i in new[members]],
            encoded.token_ids.lengths[members],
            encoded.span_start[members],
            encoded.span_end[members],
            encoded.truncated[members],
        )
        writer.add_segment(table, number)


@dataclass(frozen=True)
class _SegmentWork:
    """The missing cells of one segment."""

    target: ExtractTarget
    segment: Segment
    arrays: tuple[str, ...]
    runtime: ExtractRuntime
    progress: Progress

    def run(self, writer: StoreWriter, backbone: Backbone, disk: "_DiskThread") -> int:
        """Compute the cells and queue their rows and their commit; returns the tokens computed."""
        store, segment = writer.store, self.segment
        encoded = _encode_segment(store, self.target, segment)
        captured = [a for a in self.arrays if a not in ALWAYS]
        dtype = store.record.identity.storage_dtype
        fill = writer.fill(segment.number, self.arrays, _provenance(backbone))
        disk.owns(fill)
        for spec, values in ((TOKEN_IDS, encoded.token_ids), (SPAN, encoded.span)):
            if spec.name in self.arrays:
                fill.append(spec.name, values.data.astype(spec.storage))
        budget = batch_tokens(self.target, captured, self.runtime, backbone.device)
        for members in batches(segment.lengths, budget):
            batch = encoded.take(members)
            if captured:
                outputs = forward(backbone, batch, captured, self.target.recipe)
                # Converted on the device and copied in this thread: the copy orders itself after the
                # kernels that made the rows, and fewer bytes cross the bus.
                ready = {name: _storable(name, rows, dtype) for name, rows in outputs.items()}
                disk.submit(partial(_append_all, fill, ready))
            self.progress.advance(len(batch.token_ids.data))
        disk.submit(fill.commit)
        return segment.n_tokens


def _append_all(fill: SegmentFill, ready: dict[str, tuple[NDArray[Any], Statistics]]) -> None:
    for name, (rows, statistics) in ready.items():
        fill.append(name, rows, statistics)


def _encode_segment(store: FeatureStore, target: ExtractTarget, segment: Segment) -> Encoded:
    """Tokenise a segment's texts again and check that nothing moved since it was laid out.

    Raises:
        CorruptDataError: the tokenizer now gives other tokens than those stored.
    """
    texts = segment.table.column("text").to_pylist()
    encoded = encode(target.recipe, target.tokenizer, texts, target.max_length)
    same = np.array_equal(encoded.token_ids.lengths, segment.lengths)
    if same and TOKEN_IDS.name in store.committed(segment.number):
        stored = read_rows(store, segment.number, TOKEN_IDS.name, 0, segment.n_tokens)
        same = np.array_equal(stored, encoded.token_ids.data)
    if not same:
        raise CorruptDataError(
            f"segment {segment.number} of the store {store.store_id[:12]} holds other tokens than its "
            f"tokenizer gives now (its files are the same, so the tokenizers library changed); use a fresh "
            f"--home, or the library version in the segment's receipts"
        )
    return encoded


def _provenance(backbone: Backbone) -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "zarr": zarr.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(backbone.device),
        "attention": str(backbone.model.config._attn_implementation),
    }


class _DiskThread:
    """Does the writing in order, at most one job behind the compute; its first error stops the run.

    Commits run here too, so the next segment computes while the last one is flushed.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=1)
        self._fills: list[SegmentFill] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="permafrost-disk", daemon=True)

    def owns(self, fill: SegmentFill) -> None:
        """Drop `fill` at the end unless it was committed."""
        self._fills = [f for f in self._fills if f.is_open]
        self._fills.append(fill)

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; waits while the disk is behind.

        Raises:
            Exception: whatever an earlier job failed with.
        """
        if self._error is not None:
            raise self._error
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:
                    self._error = error

    def __enter__(self) -> "_DiskThread":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._jobs.put(None)
        self._thread.join()
        for fill in self._fills:
            fill.abandon()
        if self._error is not None and error is None:
            raise self._error


def _storable(name: str, rows: torch.Tensor, dtype: str) -> tuple[NDArray[Any], Statistics]:
    """Rows in the storage dtype on the host, with their statistics.

    Raises:
        OverflowRangeError: a finite activation is too large for the dtype.
        PermafrostError: the backbone itself produced NaN or infinity.
    """
    low, high = (float(x) for x in torch.aminmax(rows))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise PermafrostError(
            f"the backbone produced a non-finite activation in {name} (computed in {rows.dtype}); nothing "
            f"of this segment was stored. Compute in a wider type: --dtype float32"
        )
    storage = getattr(torch, dtype)
    largest = max(abs(low), abs(high))
    if largest > torch.finfo(storage).max:
        raise OverflowRangeError(
            f"{name} holds the activation {low if -low == largest else high:.6g}, beyond the range of "
            f"{dtype} (±{torch.finfo(storage).max:.6g}); nothing of this segment was stored. Set the storage "
            f"dtype to bfloat16 or float32 (--store-dtype bfloat16)"
        )
    flat = rows.reshape(-1)
    wide = flat.float() if flat.dtype != torch.float32 else flat
    mean = float(wide.mean())
    square = float(torch.dot(wide, wide)) / max(len(flat), 1)
    statistics = Statistics(
        count=len(flat), mean=mean, variance=max(square - mean * mean, 0.0), min=low, max=high
    )
    host = rows.to(storage).cpu()
    if dtype == "bfloat16":
        host = host.view(torch.uint16)
    return host.numpy(), statistics
