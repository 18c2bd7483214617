"""Cells on their way into a store: drafts, which any process may write and the store's one writer commits."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import owner
from permafrost.storage.errors import CorruptDataError, InputError, PermafrostError
from permafrost.storage.features.layout import TEXT_OF_TOKEN, widen
from permafrost.storage.features.receipts import Statistics, measure
from permafrost.storage.features.shard import ShardSeal, ShardWriter
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.side_by_side import Each, in_turn


@dataclass(frozen=True)
class Assignment:
    """Missing cells of one segment, given out by the store's writer to whoever computes them."""

    root: Path
    """Of the store, absolute."""
    drafts: Path
    """Where drafts lie. The folder is this one writer's and goes when it ends, so that nothing can be written
    for a writer that is no more."""
    segment: int
    segment_sha256: str
    """Of the segment's table, which says how many rows there are."""
    n_tokens: int
    arrays: tuple[str, ...]
    derived: tuple[str, ...] = ()
    """Arrays that follow from the table; the draft writes them by itself."""


@dataclass(frozen=True)
class SealedCell:
    """One whole shard under a draft name."""

    draft: str
    """Its file, relative to the folder of drafts."""
    seal: ShardSeal
    statistics: Statistics


@dataclass(frozen=True)
class SealedSegment:
    """Cells that are on the disk, whole, and not committed yet."""

    store_id: str
    segment: int
    segment_sha256: str
    n_tokens: int
    cells: Mapping[str, SealedCell]
    """By array, in the order of their receipts."""
    provenance: Mapping[str, str]


class SegmentDraft:
    """Writes the cells of an assignment into a folder of its own; needs no lease.

    `seal` makes them whole; left without it, as a context manager, it drops them.

    Raises:
        PermafrostError: the folder of drafts is not there.
        CorruptDataError: the table of the segment is not the one that the cells were given out for.
        InputError: the rows of its texts have numbers beyond those that the array of them holds.
        DiskFullError: from any call; the draft is removed.
    """

    def __init__(
        self, store: FeatureStore, assignment: Assignment, provenance: Mapping[str, str]
    ) -> None:
        self._store, self._assignment = store, assignment
        self._segment = store.segment(assignment.segment)
        self._provenance = dict(provenance)
        if self._segment.sha256 != assignment.segment_sha256:
            raise CorruptDataError(
                f"the table of segment {assignment.segment} of the store {store.store_id[:12]} seen here is "
                f"not the one that its cells were given out for (sha256 {self._segment.sha256[:12]}, "
                f"expected {assignment.segment_sha256[:12]}); nothing was written. Run the same command again"
            )
        name = f"{assignment.segment:06d}-{owner()}-{uuid.uuid4().hex[:8]}"
        self._folder = assignment.drafts / name
        arrays = (*assignment.derived, *assignment.arrays)
        self._statistics = dict.fromkeys(arrays, Statistics())
        self._writers: dict[str, ShardWriter] = {}
        self._is_open = True
        try:
            # Not its parents: a folder of drafts that is gone must not come back.
            with disk_errors_named(self._folder):
                self._folder.mkdir()
        except FileNotFoundError as error:
            raise PermafrostError(
                f"the folder of drafts {assignment.drafts} is not there: the extraction that segment "
                f"{assignment.segment} was to be computed for has ended, or this process does not see the "
                f"home. Nothing was written"
            ) from error
        try:
            for array in arrays:
                self._writers[array] = self._opened(array)
            for array in assignment.derived:
                self.append(array, self._derived(array))
        except BaseException:
            self.abandon()
            raise

    def _opened(self, array: str) -> ShardWriter:
        spec, axes = self._store.spec(array), self._store.record.axes
        return ShardWriter(
            self._folder / array.replace("/", "-"),
            self._store.shard_path(self._segment.number, array),
            n_rows=self._segment.rows(spec.axis),
            row_shape=() if spec.width is None else (spec.width,),
            dtype=spec.storage,
            chunk_rows=spec.chunk_rows(axes),
            shard_rows=spec.segment_rows(axes),
            codec=self._store.record.codec,
            fill=spec.fill,
        )

    def _derived(self, array: str) -> NDArray[Any]:
        assert array == TEXT_OF_TOKEN.name, f"{array} does not follow from a table"
        rows = np.repeat(self._segment.table.column("text_row").to_numpy(), self._segment.lengths)
        most = np.iinfo(TEXT_OF_TOKEN.storage).max
        if len(rows) and rows[-1] > most:
            raise InputError(
                f"segment {self._segment.number} of the store {self._store.store_id[:12]} has the text row "
                f"{rows[-1]:,}, {array} holds numbers up to {most:,}: the store is full. Extract the other "
                "texts into another --home"
            )
        return rows.astype(TEXT_OF_TOKEN.storage)

    def append(self, array: str, rows: NDArray[Any], statistics: Statistics | None = None) -> None:
        """Append the next rows of `array`, in the storage dtype; statistics are measured if not given."""
        self._writers[array].append(rows)
        logical = self._store.spec(array).dtype
        # bfloat16 arrives as its bits, whose moments would say nothing.
        numbers = widen(rows, logical) if logical == "bfloat16" else rows
        found = measure(numbers) if statistics is None else statistics
        self._statistics[array] = self._statistics[array].merged(found)

    def append_each(
        self, rows: Mapping[str, tuple[NDArray[Any], Statistics]], each: Each = in_turn
    ) -> None:
        """`append` the next rows of several arrays, with their statistics."""
        each(lambda array: self.append(array, *rows[array]), rows)

    def note(self, name: str, value: str) -> None:
        """Add to the provenance of the receipts."""
        self._provenance[name] = value

    def seal(self, each: Each = in_turn) -> SealedSegment:
        """Flush every shard to the disk. The files are the writer's from then on."""
        seals = each(lambda writer: writer.seal(), self._writers.values())
        cells = {
            array: SealedCell(
                os.fspath(writer.draft.relative_to(self._assignment.drafts)),
                seal,
                self._statistics[array],
            )
            for (array, writer), seal in zip(self._writers.items(), seals, strict=True)
        }
        self._is_open = False
        return SealedSegment(
            store_id=self._store.store_id,
            segment=self._segment.number,
            segment_sha256=self._segment.sha256,
            n_tokens=self._segment.n_tokens,
            cells=cells,
            provenance=self._provenance,
        )

    @property
    def is_open(self) -> bool:
        """Neither sealed nor abandoned."""
        return self._is_open

    def abandon(self) -> None:
        """Drop everything that was written; does nothing after `seal`."""
        if not self._is_open:
            return
        self._is_open = False
        for writer in self._writers.values():
            writer.abandon()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)

    def __enter__(self) -> "SegmentDraft":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()
