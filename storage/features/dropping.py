"""Dropping arrays from a store, and whole stores: what is dropped is 'not extracted' first, and then
its bytes go.

A kill at any moment leaves whole cells and missing ones, never a receipt without its shard; what was missing
already and still has bytes is freed when the same is dropped again.
"""

import contextlib
import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import DRAFT_PREFIX, draft_path, is_of_dead_process
from permafrost.storage.durable import bytes_under, is_there, remove_any, renamed_aside, sync_folder
from permafrost.storage.errors import CorruptDataError, DiskFullError, InputError, NotFoundError
from permafrost.storage.features.due import Due, note_due, read_due
from permafrost.storage.features.groups import write_groups
from permafrost.storage.features.layout import in_order
from permafrost.storage.features.projections import drop_projection, stored_projections
from permafrost.storage.features.receipts import revoke_receipt
from permafrost.storage.features.record import RECORD
from permafrost.storage.features.store import ALWAYS, DERIVED, FeatureStore
from permafrost.storage.features.writing import StoreWriter
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import Replica, replica_of

_ROWS = "attention_rows/"
_DOOMED = "dropped"


@dataclass(frozen=True)
class ArrayDrop:
    """One array that is to be dropped."""

    array: str
    n_segments: int
    """In which it is there now."""
    bytes: int
    """On disk, or of objects."""

    @property
    def is_there(self) -> bool:
        """Whether anything is left of it."""
        return self.n_segments > 0 or self.bytes > 0


def arrays_to_drop(store: FeatureStore, patterns: Sequence[str]) -> list[ArrayDrop]:
    """The arrays that patterns name, and what each takes: nothing if it is dropped already.

    Args:
        store: whose arrays.
        patterns: names, or patterns of them: `hidden/3`, `values/*`.

    Raises:
        NotFoundError: a pattern fits no array of the store.
        InputError: it fits one that every text needs.
    """
    own = (*ALWAYS, *DERIVED)
    committed = store.committed_in(_numbers(store)).values()
    found = {
        array: ArrayDrop(
            array,
            sum(array in cells for cells in committed),
            bytes_under(store.zarr_path / array / "c"),
        )
        for array in store.declared()
        if array not in own
    }
    named = set[str]()
    for pattern in patterns:
        if fitting := fnmatch.filter(found, pattern):
            named.update(fitting)
        elif needed := fnmatch.filter(own, pattern):
            raise InputError(
                f"{needed[0]} of the store {store.store_id[:12]} cannot be dropped: every other "
                "array is read with "
                "it; name others, or remove the whole store with 'permafrost gc'"
            )
        else:
            raise NotFoundError(
                f"no array of the store {store.store_id[:12]} is called {quoted(pattern)}; there are "
                f"{', '.join(a for a, d in found.items() if d.is_there) or 'none'}"
            )
    return [found[array] for array in in_order(named)]


def left_behind(store: FeatureStore) -> int:
    """Bytes of arrays that a killed drop was freeing; the next writer frees them."""
    prefix = f"{DRAFT_PREFIX}{_DOOMED}-"
    return sum(
        bytes_under(path) for path in store.root.glob(f"{prefix}*") if is_of_dead_process(path)
    )


def _numbers(store: FeatureStore) -> list[int]:
    """Of all segments, those without a table among them, which a repair may bring back."""
    return sorted({*store.tables(), *store.lost_tables()})


def drop_arrays(
    writer: StoreWriter, arrays: Sequence[str], check: Callable[[], None] = lambda: None
) -> None:
    """Drop arrays of every segment: they are 'not extracted' afterwards, and read as NaN by other programs.

    Attention rows take the output projection of their block along, which is read with them only.

    Args:
        writer: of the store.
        arrays: their names.
        check: called before everything that goes; what it raises ends the dropping.

    Raises:
        DiskFullError: there is no room for the metadata that is written first; nothing was dropped.
    """
    store, going = writer.store, frozenset(arrays)
    writer.require_lease()
    try:
        _forget_due(store, going)
        # Before the receipts: groups may be behind what is there, never ahead of it.
        write_groups(store, going, writer.require_lease)
    except DiskFullError as error:
        raise DiskFullError(
            f"nothing was dropped: what is left has to be written down before anything goes, and {error}. "
            "'permafrost gc' needs no room"
        ) from error
    for number in _numbers(store):
        for array in in_order(going & store.committed(number)):
            writer.require_lease()
            check()
            revoke_receipt(store.root, number, array)
    for array in in_order(going):
        check()
        _remove_shards(writer, array)
    for block in stored_projections(store):
        if f"{_ROWS}{block}" in going:
            writer.require_lease()
            drop_projection(store, block)
    store.forget()
    write_groups(store, check=writer.require_lease)


def _remove_shards(writer: StoreWriter, array: str) -> None:
    """All that lie there, also those that a killed drop left without receipts."""
    folder = writer.store.zarr_path / array / "c"
    if (replica := replica_of(folder)) is not None:
        writer.require_lease()
        replica.delete_all(folder, [key for key, _, _ in replica.objects(folder)])
    if is_there(folder):
        # Beside the other drafts, where the next writer or `gc` finds what a kill leaves.
        doomed = draft_path(writer.store.root / _DOOMED)
        with disk_errors_named(folder):
            folder.rename(doomed)
            try:
                sync_folder(folder.parent)
            finally:
                remove_any(doomed)


def _forget_due(store: FeatureStore, going: frozenset[str]) -> None:
    """A repair that did not end has nothing to compute for dropped arrays."""
    try:
        due = read_due(store)
    except CorruptDataError:
        return  # told of by `verify`
    cells = {s: tuple(a for a in names if a not in going) for s, names in due.cells.items()}
    blocks = tuple(k for k in due.projections if f"{_ROWS}{k}" not in going)
    left = Due(cells={s: names for s, names in cells.items() if names}, projections=blocks)
    if left != due:
        note_due(store, left)


def remove_store(writer: StoreWriter, check: Callable[[], None] = lambda: None) -> Path:
    """Remove the store: in a folder by one rename, on an object store cell by cell, its record last, so
    that it is a store that lacks what is gone until nothing of it is left.

    Args:
        writer: of the store.
        check: called before everything that goes; what it raises ends the removing.

    Returns:
        What its folder was renamed to, which the caller deletes.
    """
    store = writer.store
    if (replica := replica_of(store.root)) is not None:
        _delete_objects(store, replica, writer, check)
    return renamed_aside(store.root)


def _delete_objects(
    store: FeatureStore, replica: Replica, writer: StoreWriter, check: Callable[[], None]
) -> None:
    check()
    # For other tools that look meanwhile; whoever frees a full disk has no room to write them.
    with contextlib.suppress(DiskFullError):
        write_groups(store, store.declared(), writer.require_lease)
    prefix = replica.key_of(store.root)
    keys = [key for key, _, _ in replica.objects(store.root)]
    receipts = [k for k in keys if k.startswith(f"{prefix}/receipts/")]
    records = [f"{prefix}/copies/{RECORD}", f"{prefix}/{RECORD}"]
    last = {*receipts, *records, f"{prefix}/writer.lease"}
    for part in (receipts, [k for k in keys if k not in last], *([k] for k in records)):
        writer.require_lease()
        check()
        replica.delete_all(store.root, part)
