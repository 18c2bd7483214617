"""Fill the feature store: run the frozen backbone for exactly the cells that are missing.

Compute and disk overlap: the backbone runs in the calling thread, one writer thread checksums and writes.
Memory: the weights, one padded batch and at most `buffer_bytes` of captured rows waiting for the disk,
however many texts there are. A batch that does not fit in memory is split, and the run goes on.
"""

import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
import zarr

from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.families import output_projection
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.lengths import measure, refuse_too_long
from permafrost.stages.extraction.memory import Heap, Splitter
from permafrost.stages.extraction.planning import ExtractionPlan, plan_extraction
from permafrost.stages.extraction.recipes import Encoded, encode
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.extraction.token_budget import batch_tokens, portions
from permafrost.stages.extraction.writing import IN_FLIGHT, DiskThread, RowBuffers, Storable
from permafrost.storage.errors import CorruptDataError, DiskFullError, InputError
from permafrost.storage.features.layout import SPAN, TOKEN_IDS, Axes
from permafrost.storage.features.projections import has_projection, write_projection
from permafrost.storage.features.record import has_record
from permafrost.storage.features.segments import Segment, build_table, pack
from permafrost.storage.features.store import ALWAYS, FeatureStore, store_folder
from permafrost.storage.features.writing import SegmentFill, StoreWriter, writing
from permafrost.storage.paths import require_writable
from permafrost.storage.progress import Progress
from permafrost.storage.readers import read_rows

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
        load: how to load the backbone; it is called only if something is missing.

    Raises:
        InputError: a text is longer than max_length and `runtime` refuses such texts, or the home is not
            writable.
        StoreBusyError: another process is writing to this store.
        DiskFullError: the arrays cannot fit (nothing is started), or the disk fills up during the run
            (committed segments stay).
        OverflowRangeError: an activation does not fit the storage dtype.
    """
    if runtime.too_long == "refuse":
        refuse_too_long(target, home, texts, digests, runtime.block_texts)
    plan = plan_extraction(target, home, texts, digests)
    if plan.n_bytes:
        require_writable(home, "the home")
    require_room(plan, home)
    root = store_folder(home, target.identity.store_id)
    if plan.nothing_to_do and has_record(root):
        store = FeatureStore.open(root, expect=target.identity)
        if all(has_projection(store, k) for k in target.projected_blocks):
            n_truncated = _n_truncated(store, digests, runtime.block_texts)
            return ExtractReport(store, 0, 0, 0, n_truncated)
    # Loaded before anything is written, so that a bad device or bad weights are reported first.
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
    splitter = Splitter(backbone.device)
    progress.start("extract", plan.n_tokens, "tokens")
    try:
        with writing(store) as writer, DiskThread() as disk:
            work = _Computation(target, backbone, writer, disk, runtime, splitter, progress)
            for at in range(0, len(texts), runtime.block_texts):
                block = slice(at, at + runtime.block_texts)
                try:
                    _add_missing_texts(writer, target, texts[block], digests[block])
                except InputError:
                    # Encode all texts, so that the message numbers them as the caller does.
                    encode(target.recipe, target.tokenizer, texts, target.max_length)
                    raise
                where = store.locate(digests[block])
                cells = store.missing_cells(sorted(set(where.segment.tolist())), target.arrays)
                writer.declare(target.arrays)
                n_tokens += work.run(cells)
                n_cells += sum(map(len, cells.values()))
                n_segments += len(cells)
            for k in target.projected_blocks:
                if not has_projection(store, k):
                    write_projection(store, k, *output_projection(backbone, k))
    finally:
        progress.finish()
    n_truncated = _n_truncated(store, digests, runtime.block_texts)
    return ExtractReport(store, n_segments, n_cells, n_tokens, n_truncated, splitter.too_large)


def recompute_cells(
    store: FeatureStore,
    target: ExtractTarget,
    cells: Mapping[int, tuple[str, ...]],
    runtime: ExtractRuntime,
    progress: Progress,
    *,
    load: LoadBackbone | None = None,
) -> int:
    """Compute the missing `cells` of existing segments, for repair; returns the number of tokens computed.

    Raises:
        StoreBusyError: another process is writing to this store.
    """
    backbone = (load or _loader(target, runtime))()
    total = sum(store.segment(s).n_tokens for s in cells)
    progress.start("repair", total, "tokens")
    try:
        with writing(store) as writer, DiskThread() as disk:
            splitter = Splitter(backbone.device)
            return _Computation(target, backbone, writer, disk, runtime, splitter, progress).run(
                cells
            )
    finally:
        progress.finish()


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


def _n_truncated(store: FeatureStore, digests: Sequence[str], block_texts: int) -> int:
    blocks = range(0, len(digests), block_texts)
    return sum(int(store.locate(digests[at : at + block_texts]).truncated.sum()) for at in blocks)


def _add_missing_texts(
    writer: StoreWriter, target: ExtractTarget, texts: Sequence[str], digests: Sequence[str]
) -> None:
    """Tokenise the texts that the store does not know and give them segments."""
    store = writer.store
    new = np.flatnonzero(store.locate(digests).segment < 0)
    if not len(new):
        return
    measured = measure(target, [texts[i] for i in new.tolist()])
    for indices in pack(measured.lengths, store.record.axes):
        number = store.n_slots()
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


class _Computation:
    """Computes missing cells, segment after segment."""

    def __init__(
        self,
        target: ExtractTarget,
        backbone: Backbone,
        writer: StoreWriter,
        disk: DiskThread,
        runtime: ExtractRuntime,
        splitter: Splitter,
        progress: Progress,
    ) -> None:
        self._target, self._backbone, self._writer, self._disk = target, backbone, writer, disk
        self._runtime, self._splitter, self._progress = runtime, splitter, progress
        self._heap = Heap()
        self._captured: list[str] = []
        self._buffers: list[RowBuffers] = []
        """The first one may be overwritten."""

    def run(self, cells: Mapping[int, tuple[str, ...]]) -> int:
        """Compute these cells and queue their writes and commits; returns the number of tokens computed."""
        n_tokens = 0
        for number, arrays in cells.items():
            segment = self._writer.store.segment(number)
            self._segment(segment, arrays)
            n_tokens += segment.n_tokens
        return n_tokens

    def _segment(self, segment: Segment, arrays: Sequence[str]) -> None:
        target, device = self._target, self._backbone.device
        captured = [a for a in arrays if a not in ALWAYS]
        fill = self._writer.fill(segment.number, arrays, _provenance(self._backbone))
        self._disk.owns(fill)
        budget = batch_tokens(target, captured, self._runtime, device)
        if captured != self._captured:
            dtype = target.identity.storage_dtype
            self._buffers = [RowBuffers(dtype, budget, device) for _ in range(IN_FLIGHT)]
            self._captured = captured
        for first, portion in portions(segment.lengths, budget):
            stop = int(portion[-1][-1]) + 1
            encoded = _encode_part(self._writer.store, target, segment, first, stop)
            for spec, values in ((TOKEN_IDS, encoded.token_ids), (SPAN, encoded.span)):
                if spec.name in arrays:
                    fill.append(spec.name, values.data.astype(spec.storage))
            for indices in portion:
                self._heap.release_if_grown()
                self._batch(fill, encoded.take(indices - first))
        if self._splitter.too_large is not None:
            fill.note("split_from_padded_tokens", str(self._splitter.too_large))
        self._disk.submit(fill.commit)

    def _batch(self, fill: SegmentFill, batch: Encoded) -> None:
        if self._captured:
            for ready in self._splitter.results(batch, self._rows):
                self._disk.submit(partial(_append_all, fill, ready))
                # The batch queued three batches ago is on disk by now, so its buffers can be reused.
                self._buffers.append(self._buffers.pop(0))
        split = self._splitter.too_large
        note = "" if split is None else f"batches from {split:,} tokens on are split: out of memory"
        self._progress.advance(len(batch.token_ids.data), note)

    def _rows(self, batch: Encoded) -> Storable:
        buffers = self._buffers[0]
        buffers.clear()
        forward(self._backbone, batch, self._captured, self._target.recipe, buffers.keep)
        return buffers.storable()


def _append_all(fill: SegmentFill, ready: Storable) -> None:
    for name, (rows, statistics) in ready.items():
        fill.append(name, rows, statistics)


def _encode_part(
    store: FeatureStore, target: ExtractTarget, segment: Segment, first: int, stop: int
) -> Encoded:
    """Tokenise texts of a segment again, and check that the tokens are those of its layout.

    Raises:
        CorruptDataError: the tokenizer now produces different tokens.
    """
    texts = segment.table.column("text").slice(first, stop - first).to_pylist()
    encoded = encode(target.recipe, target.tokenizer, texts, target.max_length)
    same = np.array_equal(encoded.token_ids.lengths, segment.lengths[first:stop])
    if same and TOKEN_IDS.name in store.committed(segment.number):
        at = int(segment.lengths[:first].sum())
        end = at + len(encoded.token_ids.data)
        stored = read_rows(store, segment.number, TOKEN_IDS.name, at, end)
        same = np.array_equal(stored, encoded.token_ids.data)
    if not same:
        raise CorruptDataError(
            f"segment {segment.number} of the store {store.store_id[:12]} holds different tokens from those "
            f"its tokenizer now produces (its files are the same, so the tokenizers library changed); use a "
            f"fresh --home, or the library version in the segment's receipts"
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
