"""Checking `store.json` against the arrays: the sizes in the record, and those of the committed shards.

Nothing is written under a record that contradicts its shards: with wrong sizes every intact array would get
wrong metadata. A shard's layout follows from its receipt, which has a checksum.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs.zstd import Zstd

from permafrost.storage.durable import is_there, read_json
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.copies import committed_tables
from permafrost.storage.features.layout import CHUNK_BYTES, ArraySpec, Axes, Codec
from permafrost.storage.features.receipts import Receipt, read_receipt
from permafrost.storage.features.record import (
    LAST_RESORT,
    StoreRecord,
    copy_path,
    parse_record,
    record_path,
)
from permafrost.storage.features.shard import CRC_BYTES, chunk_index, index_bytes
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.replica import public_name, replica_of
from permafrost.storage.sealed import read_sealed


@dataclass(frozen=True)
class _Layout:
    """The layout of an array's shards."""

    segment_rows: int
    chunk_rows: int
    width: int | None
    codec: Codec

    def __str__(self) -> str:
        width = "" if self.width is None else f" of {self.width}"
        codec = "uncompressed" if self.codec == "none" else self.codec
        return (
            f"segments of {self.segment_rows} rows{width} in chunks of {self.chunk_rows}, {codec}"
        )


def disagreements(store: FeatureStore) -> list[str]:
    """Differences between a store's record and its committed shards and segment tables. Damaged shards and
    tables are skipped."""
    problems: list[str] = []
    for array, (recorded, actual) in _layouts(store).items():
        if actual != recorded:
            problems.append(
                f"the shards of {array} have {actual}, {record_path(store.root)} says {recorded}"
            )
    axes = store.record.axes
    for name, actual in _strides(store).items():
        if actual != (recorded := getattr(axes, name)):
            problems.append(
                f"the segment tables have {name} {actual}, {record_path(store.root)} says {recorded}"
            )
    return problems


def require_agreement(store: FeatureStore) -> None:
    """Check the record; call before anything is written.

    Raises:
        CorruptDataError: the committed shards disagree with the store's record.
    """
    if found := disagreements(store):
        raise CorruptDataError(
            f"{found[0]}; nothing was written. 'permafrost repair {store.store_id[:12]}' puts the record "
            f"right"
        )


def rebuild_record(root: Path) -> StoreRecord:
    """The record that matches the arrays of the store in `root`: the file itself, its copy or, for a store of
    an earlier version without checksum and copy, its fields corrected from the arrays.

    Raises:
        InputError: it, or a receipt, has another format version, which is no damage.
        CorruptDataError: none of these works.
    """
    tried: list[str] = []
    for path in (record_path(root), copy_path(root)):
        if not is_there(path):
            tried.append(f"{public_name(path)} is not there")
            continue
        try:
            record = parse_record(path)
            if record.store_id != root.name or record.identity.store_id != root.name:
                tried.append(
                    f"{public_name(path)} is of store {record.store_id}, not of {root.name}"
                )
                continue
            problems = disagreements(FeatureStore(root, record))
            if problems and not read_sealed(path)[1]:
                record = _corrected(root, record)
                problems = disagreements(FeatureStore(root, record))
        except CorruptDataError as error:
            tried.append(str(error))
            continue
        except InputError as error:
            if read_sealed(path)[1]:
                raise
            tried.append(str(error))
            continue
        if not problems:
            return record
        tried.append(problems[0])
    raise CorruptDataError(
        f"the record of the store {root.name} cannot be rebuilt: {'; '.join(tried)}; {LAST_RESORT}; nothing "
        "was changed"
    )


def _corrected(root: Path, record: StoreRecord) -> StoreRecord:
    """`record` with the sizes that follow from the arrays; the others are unchanged."""
    store = FeatureStore(root, record)
    sizes, axes, codecs = record.sizes.model_dump(), record.axes.model_dump(), {record.codec}
    low, high = 1, 1 << 62
    for array, (_, shown) in _layouts(store).items():
        spec = store.spec(array)
        name = "n_attn_heads" if spec.columns == "attn_head" else spec.columns
        if shown.width is not None:
            sizes[name] = shown.width
        axes["segment_tokens" if spec.axis == "token" else "segment_texts"] = shown.segment_rows
        codecs = {shown.codec}
        n_bytes = shown.chunk_rows * (shown.width or 1) * spec.storage.itemsize
        low = max(low, n_bytes)
        if shown.chunk_rows < shown.segment_rows:
            high = min(high, 2 * n_bytes - 1)
    axes.update(_strides(store))
    if not low <= axes["chunk_bytes"] <= high:
        axes["chunk_bytes"] = CHUNK_BYTES if low <= CHUNK_BYTES <= high else low
    (codec,) = codecs
    return record.model_copy(
        update={
            "axes": Axes(**axes),
            "sizes": record.sizes.model_copy(update=sizes),
            "codec": codec,
        }
    )


def _layouts(store: FeatureStore) -> dict[str, tuple[_Layout, _Layout]]:
    """For each array the layout in the record, and that of a committed shard."""
    layouts: dict[str, tuple[_Layout, _Layout]] = {}
    committed = store.committed_in([*store.tables(), *store.lost_tables()])
    for number, there in committed.items():
        for array in sorted(there.difference(layouts)):
            try:
                spec, receipt = store.spec(array), read_receipt(store.root, number, array)
            except (NotFoundError, CorruptDataError, FileNotFoundError):
                continue
            if receipt.store_id != store.store_id:
                continue
            recorded = _recorded(store, spec)
            for layout in (recorded, _declared(store.zarr_path / array)):
                if layout is not None and _explains(layout, store, spec, receipt):
                    layouts[array] = (recorded, layout)
                    break
    return layouts


def _recorded(store: FeatureStore, spec: ArraySpec) -> _Layout:
    axes = store.record.axes
    rows = spec.segment_rows(axes)
    # A damaged record may hold impossible sizes.
    possible = axes.chunk_bytes > 0 and spec.row_bytes > 0
    chunk_rows = spec.chunk_rows(axes) if possible else 0
    return _Layout(rows, chunk_rows, spec.width, store.record.codec)


def _declared(folder: Path) -> _Layout | None:
    """The layout in an array's metadata; None if it cannot be read."""
    try:
        content: Mapping[str, Any] = read_json(folder / "zarr.json")
        sharding = content["codecs"][0]["configuration"]
        return _Layout(
            int(content["chunk_grid"]["configuration"]["chunk_shape"][0]),
            int(sharding["chunk_shape"][0]),
            int(content["shape"][1]) if len(content["shape"]) > 1 else None,
            "zstd" if any(c["name"] == "zstd" for c in sharding["codecs"]) else "none",
        )
    except (CorruptDataError, FileNotFoundError, LookupError, TypeError, ValueError, OverflowError):
        return None


def _explains(layout: _Layout, store: FeatureStore, spec: ArraySpec, receipt: Receipt) -> bool:
    """Whether a shard with this receipt can have this layout."""
    n_bytes = layout.chunk_rows * (layout.width or 1) * spec.storage.itemsize
    if layout.chunk_rows != receipt.chunk_rows or n_bytes <= 0:
        return False
    n_chunks, rest = divmod(layout.segment_rows, layout.chunk_rows)
    used = -(-receipt.n_rows // layout.chunk_rows)
    if rest or used != len(receipt.chunk_crc32c) or used > n_chunks:
        return False
    if layout.codec == "none":
        return receipt.shard_bytes == used * (n_bytes + CRC_BYTES) + index_bytes(n_chunks)
    try:
        path = store.shard_path(receipt.segment, receipt.array)
        if replica_of(path) is not None and not path.exists():
            return True  # not worth a download: the receipt does not contradict
        with path.open("rb") as file:
            file.seek(-index_bytes(n_chunks), os.SEEK_END)
            offset, size = chunk_index(path, file.read())[0].tolist()
            file.seek(offset)
            raw = np.frombuffer(Zstd().decode(file.read(size - CRC_BYTES)), np.uint8)
    except (CorruptDataError, OSError, RuntimeError, ValueError, IndexError):
        return False
    return raw.nbytes == n_bytes


def _strides(store: FeatureStore) -> dict[str, int]:
    """Sizes of the axes that follow from the segment tables; the first segment shows none."""
    for number in store.tables():
        if number == 0:
            continue
        try:
            segment = store.segment(number)
        except CorruptDataError:
            continue
        if segment.n_texts and segment.sha256 in committed_tables(store, number):
            return {
                "segment_tokens": int(segment.table.column("token_start").to_numpy()[0]) // number,
                "segment_texts": int(segment.table.column("text_row").to_numpy()[0]) // number,
            }
    return {}
