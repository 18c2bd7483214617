"""What of a feature store is to be copied to another home, and what of that is there already.

Segments are copied whole, so a part that is named by texts has the other texts of their segments, too. A
segment has the same texts in both stores; its number may differ.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.array_names import named_arrays
from permafrost.storage.features.layout import in_order
from permafrost.storage.features.projections import has_projection, stored_projections
from permafrost.storage.features.receipts import Receipt
from permafrost.storage.features.segments import Segment
from permafrost.storage.features.shard import unlike
from permafrost.storage.features.store import ALWAYS, FeatureStore
from permafrost.storage.features.verification import Damage
from permafrost.storage.replica import Replica, replica_of


@dataclass(frozen=True)
class StorePart:
    """Some arrays of some segments of a store."""

    source: FeatureStore
    arrays: tuple[str, ...]
    """Extracted arrays, in the order of their numbers; token ids and spans come with them."""
    segments: tuple[int, ...]
    """Numbers in the source, ascending."""
    n_unknown: int = 0
    """Texts that were asked for and are not in the source."""

    @property
    def projections(self) -> tuple[int, ...]:
        """Blocks whose output projection belongs to the arrays."""
        stored = stored_projections(self.source)
        return tuple(k for k in stored if f"attention_rows/{k}" in self.arrays)


@dataclass(frozen=True)
class SegmentPlan:
    """What is to be done for one segment."""

    source: int
    """Its number in the source."""
    target: int | None
    """Its number in the target; None if the target has no segment of the same texts."""
    n_texts: int
    n_elsewhere: int
    """Of these, those that other segments of the target have, too."""
    cells: Mapping[str, int]
    """Bytes of each array that is to be copied."""
    damaged: tuple[Damage, ...] = ()
    """Cells of the target that are not what their receipts say, and are copied again."""


@dataclass(frozen=True)
class TransferPlan:
    """What has to be copied so that the target has a part of the source."""

    part: StorePart
    segments: tuple[SegmentPlan, ...]
    """Those of which something is to be copied."""
    n_present: int
    """Cells that are in the target already."""
    n_lacking: int
    """Cells that the source does not have."""
    projections: tuple[int, ...]
    """Blocks whose output projection the target lacks."""

    @property
    def n_cells(self) -> int:
        """Cells to copy."""
        return sum(len(s.cells) for s in self.segments)

    @property
    def n_texts(self) -> int:
        """Texts of the segments of which something is to be copied."""
        return sum(s.n_texts for s in self.segments)

    @property
    def n_elsewhere(self) -> int:
        """Of these, those that the target has in segments of other texts, too."""
        return sum(s.n_elsewhere for s in self.segments)

    @property
    def n_bytes(self) -> int:
        """Bytes of the shards to copy."""
        return sum(self.bytes_of_arrays().values())

    def bytes_of_arrays(self) -> dict[str, int]:
        """Bytes to copy of each array, in order."""
        found: dict[str, int] = {}
        for segment in self.segments:
            for array, n_bytes in segment.cells.items():
                found[array] = found.get(array, 0) + n_bytes
        return {array: found[array] for array in in_order(found)}


def part_of(
    source: FeatureStore, patterns: Sequence[str], digests: Sequence[str] | None
) -> StorePart:
    """A part of a store.

    Args:
        source: the store.
        patterns: names of arrays, or patterns of them: `hidden/*`.
        digests: of texts, whose segments are meant; None for every segment.

    Raises:
        NotFoundError: no array has such a name, or none of the texts is in the store.
        CorruptDataError: a table of the store is damaged.
    """
    there = [a for a in source.arrays() if a not in ALWAYS]
    arrays = named_arrays(there, patterns, source.store_id)
    segments, n_unknown = source.segments(), 0
    if digests is not None:
        where = source.locate(digests, arrays).segment
        n_unknown = int((where < 0).sum())
        segments = [s for s in np.unique(where).tolist() if s >= 0]
        if not segments:
            raise NotFoundError(
                f"none of the {len(digests):,} texts is in the store {source.store_id[:12]}; nothing was "
                "copied"
            )
    return StorePart(source, arrays, tuple(segments), n_unknown)


def require_alike(source: FeatureStore, target: FeatureStore) -> None:
    """Raises: InputError: shards of the one do not fit the other."""
    for what in ("axes", "codec", "sizes"):
        mine, other = getattr(target.record, what), getattr(source.record, what)
        if mine != other:
            raise InputError(
                f"the store {source.store_id[:12]} has {what} {other} there and {mine} here, so its segments "
                "cannot be copied; use a --home that does not have this store yet"
            )


def compare(part: StorePart, target: FeatureStore | None) -> TransferPlan:
    """What of a part the target lacks.

    A cell of the target counts as right if its receipt is intact and its shard has the size, the index and
    the checksums behind its chunks that the receipt says; `verify` reads the chunks, too. Of a shard on an
    object store that is not here, only the size is compared, by a listing.

    Raises:
        InputError: the stores have other segments or another codec.
        CorruptDataError: a table or a receipt of the source, or a table of the target is damaged.
    """
    source, plans, n_present, n_lacking = part.source, list[SegmentPlan](), 0, 0
    numbers: dict[str, int] = {}
    objects = _Objects()
    if target is not None:
        require_alike(source, target)
        numbers = {_layout(target.segment(n)): n for n in reversed(target.segments())}
    for number in part.segments:
        segment, committed = source.segment(number), source.committed(number)
        wanted = [a for a in (*ALWAYS, *part.arrays) if a in committed]
        n_lacking += len(part.arrays) + len(ALWAYS) - len(wanted)
        if part.arrays and not set(wanted).intersection(part.arrays):
            continue
        there, n_elsewhere = numbers.get(_layout(segment)), 0
        right, damaged = frozenset[str](), tuple[Damage, ...]()
        if target is not None and there is not None:
            right, damaged = _state(target, there, wanted, objects)
        elif target is not None and numbers:
            elsewhere = target.locate(segment.table.column("digest").to_pylist(), wanted).segment
            n_elsewhere = int((elsewhere >= 0).sum())
            if n_elsewhere == segment.n_texts and not target.missing_cells(
                np.unique(elsewhere).tolist(), wanted
            ):
                right = frozenset(wanted)
        n_present += len(right)
        cells = {a: _checked(source, segment, a).shard_bytes for a in wanted if a not in right}
        if cells:
            plans.append(SegmentPlan(number, there, segment.n_texts, n_elsewhere, cells, damaged))
    lacks = partial(_lacks_projection, target)
    return TransferPlan(
        part, tuple(plans), n_present, n_lacking, tuple(filter(lacks, part.projections))
    )


def _lacks_projection(target: FeatureStore | None, block: int) -> bool:
    return target is None or not has_projection(target, block)


def _layout(segment: Segment) -> str:
    """Digest of the texts of a segment, in their order, with what their tokens are."""
    table = segment.table
    found = hashlib.sha256("\n".join(table.column("digest").to_pylist()).encode())
    for name in ("n_tokens", "span_start", "span_end", "truncated"):
        found.update(table.column(name).to_numpy(zero_copy_only=False).tobytes())
    return found.hexdigest()


def _state(
    target: FeatureStore, number: int, arrays: Iterable[str], objects: "_Objects"
) -> tuple[frozenset[str], tuple[Damage, ...]]:
    """Which cells of a segment are right in the target, and which are damaged."""
    right, damaged, committed = set[str](), list[Damage](), target.committed(number)
    for array in arrays:
        if array not in committed:
            continue
        problem = _problem(target, number, array, objects)
        if problem is None:
            right.add(array)
        else:
            damaged.append(Damage(number, array, problem))
    return frozenset(right), tuple(damaged)


class _Objects:
    """Sizes of the shards of a store on an object store; those of an array are listed once."""

    def __init__(self) -> None:
        self._listed: dict[Path, dict[str, int]] = {}

    def n_bytes(self, replica: Replica, shard: Path, array: Path) -> int | None:
        """Of the object of a shard in the folder of its array; None if there is none."""
        if array not in self._listed:
            self._listed[array] = {key: n_bytes for key, n_bytes, _ in replica.objects(array)}
        return self._listed[array].get(replica.key_of(shard))


def _problem(target: FeatureStore, number: int, array: str, objects: _Objects) -> str | None:
    """What is wrong with a committed cell, as far as it shows without reading all of it."""
    spec, axes = target.spec(array), target.record.axes
    path = target.shard_path(number, array)
    try:
        receipt = target.checked_receipt(number, array)
    except CorruptDataError as error:
        return str(error)
    if (replica := replica_of(path)) is not None:
        # What its object holds would have to be read; a copy here may have outlived it.
        n_bytes = objects.n_bytes(replica, path, target.zarr_path / array)
        if n_bytes != receipt.shard_bytes:
            size = "no object" if n_bytes is None else f"{n_bytes:,} bytes"
            return f"there is {size} of it, its receipt says {receipt.shard_bytes:,} bytes"
        if not path.exists():
            return None
    return unlike(path, receipt.seal, spec.segment_rows(axes) // spec.chunk_rows(axes))


def _checked(source: FeatureStore, segment: Segment, array: str) -> Receipt:
    """The receipt of a cell, which is about this segment's rows."""
    receipt = source.checked_receipt(segment.number, array)
    n_rows = segment.rows(source.spec(array).axis)
    if receipt.n_rows != n_rows:
        raise CorruptDataError(
            f"the receipt of {array} in segment {segment.number} of the store {source.store_id[:12]} counts "
            f"{receipt.n_rows} rows, the segment has {n_rows}; run 'permafrost verify' there"
        )
    return receipt
