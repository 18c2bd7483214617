"""The rows of one segment after the other: batches through the backbone, and on the way to the disk."""

import platform
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version

import numpy as np
import torch
import transformers

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.memory import Heap, Splitter
from permafrost.stages.extraction.non_finite import NonFiniteError, explained
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.extraction.token_budget import batch_tokens, portions
from permafrost.stages.extraction.writing import IN_FLIGHT, DiskThread, RowBuffers, Storable
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.layout import SPAN, TOKEN_IDS
from permafrost.storage.features.segment_drafts import Assignment, SegmentDraft
from permafrost.storage.features.segments import Segment
from permafrost.storage.features.store import ALWAYS, FeatureStore
from permafrost.storage.progress import Progress
from permafrost.storage.readers import read_rows
from permafrost.storage.side_by_side import Each

_OF_TEXTS = ("tokenizers", "blingfire")
"""Libraries that decide what a text's tokens and sentences are."""
SPLIT_FROM = "split_from_padded_tokens"
"""Provenance of segments whose batches ran out of memory."""


class Computation:
    """Computes cells of one store, segment after segment, in memory that stays.

    Nothing but memory is carried from one segment to the next: batches are made of the texts of one segment,
    so its rows are the same whichever were computed before it, and where. Only a batch that did not fit in
    memory changes how later ones are cut.
    """

    def __init__(
        self,
        store: FeatureStore,
        target: ExtractTarget,
        backbone: Backbone,
        runtime: ExtractRuntime,
        disk: DiskThread,
        each: Each,
        progress: Progress,
    ) -> None:
        """Args: each: how the disk thread writes the arrays of a batch."""
        self._store, self._target, self._backbone = store, target, backbone
        self._runtime, self._disk, self._each, self._progress = runtime, disk, each, progress
        self._splitter = Splitter(backbone.device)
        self._heap = Heap()
        self._captured: list[str] = []
        self._buffers: list[RowBuffers] = []
        """The first one may be overwritten."""

    def draft(self, cells: Assignment) -> SegmentDraft:
        """An empty draft of these cells, which is dropped when the disk thread ends unless it was sealed."""
        draft = SegmentDraft(self._store, cells, _provenance(self._backbone))
        self._disk.owns(draft)
        return draft

    def fill(self, draft: SegmentDraft, cells: Assignment) -> Iterator[None]:
        """Compute a batch with each step and queue its rows for the disk."""
        target, device = self._target, self._backbone.device
        segment, arrays = self._store.segment(cells.segment), cells.arrays
        captured = [a for a in arrays if a not in ALWAYS]
        budget = batch_tokens(target, captured, self._runtime, device)
        if captured != self._captured:
            dtype = target.identity.storage_dtype
            self._buffers = [RowBuffers(dtype, budget, device) for _ in range(IN_FLIGHT)]
            self._captured = captured
        for first, portion in portions(segment.lengths, budget):
            stop = int(portion[-1][-1]) + 1
            encoded = _encode_part(self._store, target, segment, first, stop)
            for spec, values in ((TOKEN_IDS, encoded.token_ids), (SPAN, encoded.span)):
                if spec.name in arrays:
                    draft.append(spec.name, values.data.astype(spec.storage))
            for indices in portion:
                self._heap.release_if_grown()
                self._batch(draft, encoded.take(indices - first))
                yield
        if self._splitter.too_large is not None:
            draft.note(SPLIT_FROM, str(self._splitter.too_large))

    def _batch(self, draft: SegmentDraft, batch: Encoded) -> None:
        if self._captured:
            for ready in self._splitter.results(batch, self._rows):
                self._disk.submit(partial(draft.append_each, ready, self._each))
                # The batch queued three batches ago is on disk by now, so its buffers can be reused.
                self._buffers.append(self._buffers.pop(0))
        split = self._splitter.too_large
        note = "" if split is None else f"batches from {split:,} tokens on are split: out of memory"
        self._progress.advance(len(batch.token_ids.data), note)

    def _rows(self, batch: Encoded) -> Storable:
        buffers = self._buffers[0]
        buffers.clear()
        forward(self._backbone, batch, self._captured, self._target.recipe, buffers.keep)
        try:
            return buffers.storable()
        except NonFiniteError as error:
            outcome = "nothing of this segment was stored"
            raise explained(error, self._backbone, outcome) from error


def _encode_part(
    store: FeatureStore, target: ExtractTarget, segment: Segment, first: int, stop: int
) -> Encoded:
    """Tokenise texts of a segment again, and check that the tokens are those of its layout.

    Raises:
        CorruptDataError: the tokenizer now produces different tokens.
    """
    texts = segment.table.column("text").slice(first, stop - first).to_pylist()
    encoded = target.encoded(texts)
    same = np.array_equal(encoded.token_ids.lengths, segment.lengths[first:stop])
    if same and TOKEN_IDS.name in store.committed(segment.number):
        at = int(segment.lengths[:first].sum())
        end = at + len(encoded.token_ids.data)
        stored = read_rows(store, segment.number, TOKEN_IDS.name, at, end)
        same = np.array_equal(stored, encoded.token_ids.data)
    if not same:
        raise CorruptDataError(
            f"segment {segment.number} of the store {store.store_id[:12]} holds different tokens from those "
            f"its tokenizer now produces (its files are the same, so the tokenizers library changed, or "
            f"blingfire where a recipe divides texts into sentences; here are {_versions_of_texts()}); use a "
            f"fresh --home, or the versions in the segment's receipts"
        )
    return encoded


def _versions_of_texts() -> str:
    return " and ".join(f"{name} {version(name)}" for name in _OF_TEXTS)


def _provenance(backbone: Backbone) -> dict[str, str]:
    return {
        **{name: version(name) for name in _OF_TEXTS},
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "zarr": version("zarr"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": str(backbone.device),
        "attention": str(backbone.model.config._attn_implementation),
    }
