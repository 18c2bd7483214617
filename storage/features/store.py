"""Opening a feature store, and what is in it."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from storage.durable import create_durably, json_bytes, read_json, write_json
from storage.errors import CorruptDataError, InputError, NotFoundError
from storage.features.identity import FORMAT_VERSION, StoreIdentity, require_same
from storage.features.layout import (
    SPAN,
    TOKEN_IDS,
    ZARR_GROUP,
    ArraySpec,
    Axes,
    Codec,
    StoreSizes,
    array_spec,
    check_axes,
    choose_axes,
    shard_key,
    zarr_metadata,
)
from storage.features.receipts import Receipt, committed_arrays, read_receipt
from storage.features.segments import Segment, read_segment
from storage.features.shard import CannotMapError, MappedShard, ShardRows
from storage.features.zarr_shard import ZarrShard
from storage.quoting import quoted
from storage.replica import fetch_missing

ALWAYS = (TOKEN_IDS.name, SPAN.name)
"""Arrays that every segment has, whatever was captured."""


class StoreRecord(BaseModel):
    """The content of `store.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = "permafrost-features"
    format_version: int = FORMAT_VERSION
    store_id: str
    identity: StoreIdentity
    axes: Axes
    sizes: StoreSizes
    codec: Codec
    backbone: dict[str, str]
    """How to find the backbone again (source, revision): a hint, never identity."""
    created: str


@dataclass(frozen=True)
class Locations:
    """Where texts lie: `[n]` each; `segment` is -1 for a text the store does not know."""

    segment: NDArray[np.int64]
    token_start: NDArray[np.int64]
    n_tokens: NDArray[np.int64]
    text_row: NDArray[np.int64]


class FeatureStore:
    """Read side of a feature store; `storage.features.writing` holds the write side."""

    def __init__(self, root: Path, record: StoreRecord) -> None:
        self.root, self.record = root, record
        self._segments: dict[int, Segment] = {}
        self._shards: dict[tuple[int, str], ShardRows] = {}

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
        """The store of `identity` under `home`, made if it is not there.

        Raises:
            IdentityMismatchError: the folder holds a store of another identity.
            InputError: the axes cannot hold a text of `max_length`.
        """
        root = store_folder(home, identity.store_id)
        if (root / "store.json").exists():
            return cls.open(root, expect=identity)
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
        write_json(root / "features.zarr" / "zarr.json", ZARR_GROUP)
        if not create_durably(root / "store.json", json_bytes(record.model_dump(mode="json"))):
            return cls.open(root, expect=identity)
        return cls(root, record)

    @classmethod
    def open(cls, root: Path, expect: StoreIdentity | None = None) -> "FeatureStore":
        """Open an existing store.

        Raises:
            NotFoundError: there is no store.
            InputError: made by a newer format.
            CorruptDataError: `store.json` is damaged or does not fit its own id.
            IdentityMismatchError: its identity is not `expect`.
        """
        path = root / "store.json"
        if not path.exists():
            raise NotFoundError(
                f"there is no feature store at {root} (no store.json); see 'permafrost ls'"
            )
        content = read_json(path)
        fields = cast(dict[str, object], content) if isinstance(content, dict) else {}
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise InputError(
                f"{path} has store format {quoted(version)}, this program reads {FORMAT_VERSION}; use a "
                f"version of permafrost that reads it, or extract into a fresh --home"
            )
        try:
            record = StoreRecord.model_validate(content)
        except ValidationError as error:
            raise CorruptDataError(f"{path} is damaged: {error.errors()[0]['msg']}") from error
        if expect is not None:
            require_same(record.identity, expect, str(root))
        if record.identity.store_id != record.store_id:
            raise CorruptDataError(
                f"{path} says store_id {record.store_id}, but its identity has the digest "
                f"{record.identity.store_id}; the file was changed by hand, restore it"
            )
        return cls(root, record)

    def forget(self) -> None:
        """Drop what was read into memory, after something on disk was dropped."""
        self._segments.clear()
        self._shards.clear()

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
        """Numbers of all segments, also unfinished ones, ascending."""
        folder = self.root / "segments"
        return sorted(int(p.stem) for p in folder.glob("*.parquet") if p.stem.isdigit())

    def n_slots(self) -> int:
        """One more than the highest segment number ever used; dropped numbers are not used again."""
        used = (int(p.name) for p in self.root.glob("receipts/[0-9]*"))
        return max([-1, *self.segments(), *used]) + 1

    def segment(self, number: int) -> Segment:
        """Layout of one segment (kept in memory once read: segments never change).

        Raises:
            CorruptDataError: its table is damaged.
        """
        if number not in self._segments:
            self._segments[number] = read_segment(self.root, number)
        return self._segments[number]

    def committed(self, segment: int) -> frozenset[str]:
        """Arrays whose cell in `segment` is complete."""
        return committed_arrays(self.root, segment)

    def arrays(self) -> list[str]:
        """All arrays that have at least one committed cell, sorted."""
        return sorted(set[str]().union(*(self.committed(s) for s in self.segments())))

    def locate(self, digests: Sequence[str]) -> Locations:
        """Find texts by content digest; a text the store does not know gets segment -1."""
        n = len(digests)
        numbers = self.segments()
        out = Locations(
            np.full(n, -1, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
        )
        if not numbers or not n:
            return out
        tables = [self.segment(s).table for s in numbers]
        known = pa.concat_tables(
            [t.select(["digest", "token_start", "n_tokens", "text_row"]) for t in tables]
        ).combine_chunks()
        owner = np.repeat(np.array(numbers, np.int64), [t.num_rows for t in tables])
        found = pc.index_in(pa.array(digests, pa.string()), value_set=known.column("digest"))
        rows = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        hit = rows >= 0
        out.segment[hit] = owner[rows[hit]]
        for name in ("token_start", "n_tokens", "text_row"):
            getattr(out, name)[hit] = known.column(name).to_numpy()[rows[hit]]
        return out

    def missing_cells(
        self, segments: Iterable[int], arrays: Sequence[str]
    ) -> dict[int, tuple[str, ...]]:
        """For each segment, those of `arrays` (token ids and spans included) without a receipt."""
        wanted = (*ALWAYS, *arrays)
        cells = {
            s: tuple(a for a in wanted if a not in have)
            for s in segments
            for have in [self.committed(s)]
        }
        return {s: names for s, names in cells.items() if names}

    def shard_path(self, segment: int, array: str) -> Path:
        """File of one cell."""
        return self.zarr_path / shard_key(self.spec(array), segment)

    def open_shard(self, segment: int, array: str) -> ShardRows:
        """Open a committed cell; opened once, so that each chunk is verified once.

        Raises:
            NotFoundError: the cell has no receipt.
            CorruptDataError: its receipt or shard is damaged or belongs elsewhere.
        """
        if (segment, array) not in self._shards:
            self._shards[segment, array] = self.reopen_shard(segment, array)
        return self._shards[segment, array]

    def checked_receipt(self, segment: int, array: str) -> Receipt:
        """The receipt of a committed cell, checked against this store and the segment's layout.

        Raises:
            NotFoundError: the cell has no receipt.
            CorruptDataError: its receipt is damaged or belongs elsewhere.
        """
        if array not in self.committed(segment):
            raise NotFoundError(
                f"{array} of segment {segment} is not in the store {self.store_id[:12]}; extract it first"
            )
        receipt = read_receipt(self.root, segment, array)
        if receipt.store_id != self.store_id:
            raise CorruptDataError(
                f"the receipt of {array} in segment {segment} belongs to store {receipt.store_id}, this is "
                f"{self.store_id}; run 'permafrost repair'"
            )
        if receipt.segment_sha256 != self.segment(segment).sha256:
            raise CorruptDataError(
                f"the table of segment {segment} changed after {array} was committed (sha256 "
                f"{self.segment(segment).sha256[:12]}, receipt says {receipt.segment_sha256[:12]}); "
                f"run 'permafrost repair'"
            )
        return receipt

    def reopen_shard(self, segment: int, array: str) -> ShardRows:
        """As `open_shard`, but afresh: every chunk will be verified again.

        Mapped; through the Zarr API where the file system has no maps.
        """
        receipt = self.checked_receipt(segment, array)
        spec, axes = self.spec(array), self.record.axes
        path = self.shard_path(segment, array)
        fetch_missing([path])
        shape: dict[str, Any] = {
            "row_shape": () if spec.width is None else (spec.width,),
            "dtype": spec.storage,
            "chunk_rows": spec.chunk_rows(axes),
            "shard_rows": spec.segment_rows(axes),
        }
        try:
            return MappedShard(path, seal=receipt.seal, codec=self.record.codec, **shape)
        except CannotMapError:
            folder, first_row = self.zarr_path / array, segment * spec.segment_rows(axes)
            return ZarrShard(path, folder, first_row=first_row, seal=receipt.seal, **shape)

    def array_metadata(self, array: str, n_segments: int) -> dict[str, Any]:
        """The `zarr.json` that `array` has when the store holds `n_segments`."""
        return zarr_metadata(self.spec(array), self.record.axes, n_segments, self.record.codec)


def store_folder(home: Path, store_id: str) -> Path:
    """Where a feature store lies under a home."""
    return home / "features" / store_id


def all_stores(home: Path) -> list[FeatureStore]:
    """Every feature store under `home`, by id."""
    return [FeatureStore.open(p.parent) for p in sorted(home.glob("features/*/store.json"))]
