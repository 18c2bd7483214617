"""Opening a feature store, and finding out what it holds."""

import contextlib
import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from permafrost.storage.drafts import DRAFT_PREFIX
from permafrost.storage.durable import create_durably, json_bytes, read_json
from permafrost.storage.errors import CorruptDataError, NotFoundError, RemovedError
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.features.layout import (
    SPAN,
    TEXT_OF_TOKEN,
    TOKEN_IDS,
    ZARR_GROUP,
    ArraySpec,
    Axes,
    Codec,
    StoreSizes,
    array_spec,
    check_axes,
    choose_axes,
    in_order,
    n_segments_of,
    shard_key,
    zarr_metadata,
)
from permafrost.storage.features.open_shards import OpenShards
from permafrost.storage.features.places import PLACE, Locations
from permafrost.storage.features.receipts import Receipt, committed_arrays, read_receipt
from permafrost.storage.features.record import (
    StoreRecord,
    advice,
    create_record,
    has_record,
    read_record,
    record_path,
)
from permafrost.storage.features.seen import SeenReceipts
from permafrost.storage.features.segments import Segment, numbered_tables, read_segment
from permafrost.storage.features.shard import ShardRows
from permafrost.storage.features.text_index import TextIndex
from permafrost.storage.replica import public_name

ALWAYS = (TOKEN_IDS.name, SPAN.name)
"""Arrays that every segment has, whatever is captured."""
DERIVED = (TEXT_OF_TOKEN.name,)
"""Arrays that follow from the segment tables; segments of earlier versions get them when they are next
written."""
ZARR_JSON = "zarr.json"

_KEPT_SEGMENTS = 2


class FeatureStore:
    """The read side of a feature store; for the write side see `storage.features.writing`."""

    def __init__(self, root: Path, record: StoreRecord) -> None:
        self.root, self.record = root, record
        self._segments: dict[int, Segment] = {}
        """The most recently used segments, at most _KEPT_SEGMENTS, in order of use."""
        self._index = TextIndex(root)
        self._shards = OpenShards()
        self._receipts = SeenReceipts(root)

    def __reduce__(self) -> tuple[Any, ...]:
        """Shards that are open are opened anew."""
        return type(self), (self.root, self.record)

    @classmethod
    def create_or_open(
        cls,
        home: Path,
        identity: StoreIdentity,
        sizes: StoreSizes,
        backbone: Mapping[str, str],
        *,
        codec: Codec = "none",
        axes: Axes | None = None,
    ) -> "FeatureStore":
        """The store of `identity` under `home`, created if it does not exist.

        Raises:
            IdentityMismatchError: the folder holds a store of another identity.
            CorruptDataError: the store exists, but its `store.json` is damaged, missing or has other sizes.
            InputError: the axes cannot hold a text of `max_length`.
        """
        root = store_folder(home, identity.store_id)
        if has_record(root):
            return cls._reopen(root, identity, sizes)
        axes = axes or choose_axes(sizes.d_model, identity.storage_dtype, identity.max_length)
        check_axes(axes, identity.max_length)
        record = StoreRecord(
            store_id=identity.store_id,
            identity=identity,
            axes=axes,
            sizes=sizes,
            codec=codec,
            backbone=dict(backbone),
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        try:
            create_durably(root / "features.zarr" / ZARR_JSON, json_bytes(ZARR_GROUP))
            if create_record(root, record):
                return cls(root, record)
        except FileNotFoundError:
            # Another process has created it meanwhile; its writer removes all drafts, ours too, and writes
            # what they were for.
            if not has_record(root):
                raise
        return cls._reopen(root, identity, sizes)

    @classmethod
    def _reopen(cls, root: Path, identity: StoreIdentity, sizes: StoreSizes) -> "FeatureStore":
        store = cls.open(root, expect=identity)
        if store.record.sizes != sizes:
            # The identity holds the digest of the weights, so the backbone cannot have changed.
            raise CorruptDataError(
                f"{record_path(root)} says {store.record.sizes}, the backbone of the same digest has "
                f"{sizes}; the file was changed by hand: put the numbers of the backbone there"
            )
        return store

    @classmethod
    def open(cls, root: Path, expect: StoreIdentity | None = None) -> "FeatureStore":
        """Open an existing store.

        Raises:
            NotFoundError: there is no store.
            InputError: it has another format version.
            CorruptDataError: `store.json` is damaged or does not match its own id.
            IdentityMismatchError: its identity is not `expect`.
        """
        return cls(root, read_record(root, expect))

    def forget(self) -> None:
        """Clear everything cached in memory, after something on disk has changed."""
        self._segments.clear()
        self._index = TextIndex(self.root)
        self._shards.clear()
        self._receipts = SeenReceipts(self.root)

    def require_there(self) -> None:
        """Raises: RemovedError: the store was removed since it was opened."""
        if not has_record(self.root):
            raise RemovedError(
                f"the store {public_name(self.root)} is gone: it was removed since it was opened "
                "(by gc, or by "
                "hand). Run the same command again; what it lacks is extracted again"
            )

    @property
    def store_id(self) -> str:
        """Digest of the identity."""
        return self.record.store_id

    @property
    def zarr_path(self) -> Path:
        """The pure Zarr v3 group; any Zarr reader opens it."""
        return self.root / "features.zarr"

    def spec(self, array: str) -> ArraySpec:
        """Axis, width and dtype of an array of this store.

        Raises:
            NotFoundError: no such kind of array.
        """
        return array_spec(array, self.record.sizes, self.record.identity.storage_dtype)

    def segments(self) -> list[int]:
        """Numbers of all segments, also unfinished ones, ascending.

        Raises:
            CorruptDataError: the table of a segment is gone: a reader would get fewer texts than there are.
            RemovedError: the store has been removed.
        """
        self.require_there()
        if lost := self.lost_tables():
            raise CorruptDataError(
                f"the table of segment {lost[0]} of the store {self.store_id[:12]} is gone, but the segment "
                f"has receipts{advice(self.root)} from its copy"
            )
        return self.tables()

    def tables(self) -> list[int]:
        """Numbers of the segments whose table is there, ascending."""
        return sorted(numbered_tables(self.root / "segments"))

    def lost_tables(self) -> list[int]:
        """Numbers of the segments that have receipts and no table, ascending."""
        # Before the tables: a table is written before its receipts, and removed after them.
        used = self._used()
        return [s for s in sorted(used.difference(self.tables())) if self.committed(s)]

    def _used(self) -> set[int]:
        try:
            names = os.listdir(self.root / "receipts")  # noqa: PTH208 Path makes 10^5 paths of them
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return set()
        return {int(name) for name in names if name.isdigit()}

    def n_slots(self) -> int:
        """One more than the highest segment number ever used; numbers of dropped segments are not reused.

        The length that the arrays were given counts too: emptied folders of receipts are in no object store.
        """
        declared: list[int] = []
        for array in ALWAYS:
            with contextlib.suppress(CorruptDataError, FileNotFoundError):
                found = read_json(self.zarr_path / array / ZARR_JSON)
                declared.append(n_segments_of(found, self.array_metadata(array, 1)))
        return max(max([-1, *self.tables(), *self._used()]) + 1, min(declared, default=0))

    def segment(self, number: int) -> Segment:
        """One segment (the last few are cached, as segments never change).

        Raises:
            CorruptDataError: its table is damaged, or not the one that its receipts were written for.
        """
        found = self._segments.pop(number, None) or self._read(number, None)
        self._segments[number] = found
        while len(self._segments) > _KEPT_SEGMENTS:
            self._segments.pop(next(iter(self._segments)), None)
        return found

    def _table_sha256(self, number: int) -> str:
        if number not in self._index.sha256:
            self._read(number, PLACE[:1])
        return self._index.sha256[number]

    def _read(self, number: int, columns: Sequence[str] | None) -> Segment:
        try:
            segment = read_segment(self.root, number, columns)
        except CorruptDataError:
            self.require_there()
            raise
        self._require_committed(segment)
        self._index.sha256.setdefault(number, segment.sha256)
        return segment

    def _require_committed(self, segment: Segment) -> None:
        """Check a table against the receipts: an intact table of another segment would give other texts, and
        no array need ever be read to notice."""
        other: Receipt | None = None
        for array in sorted(self.committed(segment.number), key=lambda a: (a not in ALWAYS, a)):
            try:
                receipt = read_receipt(self.root, segment.number, array)
            except (CorruptDataError, NotFoundError):
                continue
            if receipt.segment_sha256 == segment.sha256:
                return
            other = receipt if receipt.store_id == self.store_id else other
        if other is not None:
            raise CorruptDataError(
                f"the table of segment {segment.number} of the store {self.store_id[:12]} is not the one "
                f"that its receipts were written for (sha256 {segment.sha256[:12]}, receipts say "
                f"{other.segment_sha256[:12]}){advice(self.root)} from its copy"
            )

    def committed(self, segment: int) -> frozenset[str]:
        """Arrays whose cell in `segment` is complete."""
        return committed_arrays(self.root, segment)

    def committed_in(self, segments: Iterable[int]) -> dict[int, frozenset[str]]:
        """As `committed`, for many segments at once."""
        return self._receipts.of(list(segments))

    def arrays(self) -> list[str]:
        """All extracted arrays that have at least one committed cell, in the order of their numbers."""
        found = set[str]().union(*self.committed_in(self.segments()).values())
        return in_order(found.difference(DERIVED))

    def metadata_paths(self) -> dict[str, Path]:
        """The `zarr.json` of every array and group, by name; folders of shards are not looked into."""
        found: dict[str, Path] = {}
        for folder, inside, files in os.walk(self.zarr_path):
            inside[:] = [name for name in inside if name != "c"]
            if ZARR_JSON in files:
                path = Path(folder)
                found[path.relative_to(self.zarr_path).as_posix()] = path / ZARR_JSON
        return found

    def declared(self) -> list[str]:
        """Arrays that have Zarr metadata, also those of which no cell is there (any more), in the order
        of their numbers."""
        return in_order(filter(self.is_array, self.metadata_paths()))

    def is_array(self, name: str) -> bool:
        """Whether a store of this kind may have an array of this name."""
        try:
            self.spec(name)
        except NotFoundError:
            return False
        return True

    def locate(self, digests: Sequence[str], arrays: Sequence[str] = ()) -> Locations:
        """Locate texts by content digest; a text that is not in the store gets segment -1.

        A text may be in several segments, as after a `pull`: it is located in the first that has all of
        `arrays`, and in the first of all if none has.
        """
        places = self._index.of(self.segments(), lambda number: self._read(number, PLACE))
        found = places.find(digests)
        if not arrays:
            return found
        wanted = frozenset(arrays)
        there = self.committed_in(np.unique(found.segment[found.segment >= 0]).tolist())
        lacking = [number for number, committed in there.items() if not wanted <= committed]
        if lacking:
            at = np.flatnonzero(np.isin(found.segment, lacking))
            texts = [digests[i] for i in at.tolist()]
            others = self.committed_in(places.segments_of(texts))
            having = [number for number, committed in others.items() if wanted <= committed]
            if having:
                found.replace(at, places.find(texts, having))
        return found

    def added(self, segment: Segment) -> None:
        """A segment has just been written: it need not be read to locate its texts."""
        self._index.added(segment)

    def remember(self) -> None:
        """Keep what was read of a large store for the next process that opens it."""
        self._index.remember()

    def missing_cells(
        self, segments: Iterable[int], arrays: Sequence[str]
    ) -> dict[int, tuple[str, ...]]:
        """For each segment, those of `arrays` (and of token ids and spans) without a receipt."""
        wanted = (*ALWAYS, *arrays)
        committed = self.committed_in(segments)
        cells = {s: tuple(a for a in wanted if a not in have) for s, have in committed.items()}
        return {s: names for s, names in cells.items() if names}

    def shard_path(self, segment: int, array: str) -> Path:
        """The shard file of one cell."""
        return self.zarr_path / shard_key(self.spec(array), segment)

    def open_shard(self, segment: int, array: str) -> ShardRows:
        """Open a committed cell; it is cached, so that each chunk is verified only once. Of many cells only
        those used last stay open.

        Raises:
            NotFoundError: the cell has no receipt.
            CorruptDataError: its receipt or shard is damaged, or belongs to another cell.
            UnreadableError: it cannot be read.
        """
        return self._shards.of((segment, array), self.reopen_shard)

    def checked_receipt(self, segment: int, array: str) -> Receipt:
        """The receipt of a committed cell, checked against this store and the segment's layout.

        Raises:
            NotFoundError: the cell has no receipt.
            CorruptDataError: its receipt is damaged, or belongs to another cell.
        """
        if array not in self.committed(segment):
            self.require_there()
            raise NotFoundError(
                f"{array} of segment {segment} is not in the store {self.store_id[:12]}; extract it first"
            )
        receipt = read_receipt(self.root, segment, array)
        if receipt.store_id != self.store_id:
            raise CorruptDataError(
                f"the receipt of {array} in segment {segment} belongs to store {receipt.store_id}, this is "
                f"{self.store_id}; run 'permafrost repair'"
            )
        sha256 = self._table_sha256(segment)
        if receipt.segment_sha256 != sha256:
            raise CorruptDataError(
                f"the table of segment {segment} changed after {array} was committed (sha256 "
                f"{sha256[:12]}, receipt says {receipt.segment_sha256[:12]}); "
                f"run 'permafrost repair'"
            )
        return receipt

    def reopen_shard(self, segment: int, array: str) -> ShardRows:
        """As `open_shard`, but not cached: every chunk will be verified again."""
        path, receipt = self.shard_path(segment, array), self.checked_receipt(segment, array)
        try:
            return self.rows_at(path, receipt)
        except CorruptDataError:
            # It may have been removed since the receipt was read, which then is gone too, or written again.
            now = self.checked_receipt(segment, array)
            if now == receipt:
                raise
            return self.rows_at(path, now)

    def rows_at(self, path: Path, receipt: Receipt) -> ShardRows:
        """The rows of a shard of this store that lies at `path`, be it not in its place yet.

        Raises:
            CorruptDataError: it is not what the receipt says.
        """
        spec, axes = self.spec(receipt.array), self.record.axes
        return ShardRows(
            path,
            seal=receipt.seal,
            row_shape=() if spec.width is None else (spec.width,),
            dtype=spec.storage,
            chunk_rows=spec.chunk_rows(axes),
            shard_rows=spec.segment_rows(axes),
            codec=self.record.codec,
        )

    def array_metadata(self, array: str, n_segments: int) -> dict[str, Any]:
        """The `zarr.json` of `array` if the store holds `n_segments`."""
        return zarr_metadata(self.spec(array), self.record.axes, n_segments, self.record.codec)


def store_folder(home: Path, store_id: str) -> Path:
    """The folder of a feature store under a home."""
    return home / "features" / store_id


def all_stores(home: Path) -> list[FeatureStore]:
    """Every feature store under `home`, by id.

    Raises:
        CorruptDataError: one of them cannot be opened.
    """
    found: list[FeatureStore] = []
    for root in store_folders(home):
        try:
            found.append(FeatureStore.open(root))
        except NotFoundError:
            continue  # removed since it was listed
    return found


def store_folders(home: Path) -> list[Path]:
    """The folder of every feature store under `home`, by id, including those with a damaged `store.json`."""
    found = sorted(p for p in home.glob("features/*") if not p.name.startswith(DRAFT_PREFIX))
    return [p for p in found if has_record(p)]
