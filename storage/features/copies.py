"""Copies of what cannot be computed again: the record of a store and the tables of its segments."""

import contextlib
import hashlib
from pathlib import Path

from permafrost.storage.durable import is_there, read_whole, rewrite, write_durably
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.record import keep_record, read_copy
from permafrost.storage.features.segments import segment_path, table_copy
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.replica import fetch_missing, replica_of


def keep_copies(store: FeatureStore) -> None:
    """Write the copies that are missing or differ; stores of earlier versions have none. Only the lease
    holder may. A table is copied only if the segment's receipts prove it."""
    keep_record(store.root, store.record)
    for number in store.tables():
        copy = table_copy(store.root, number)
        if is_there(copy) or replica_of(copy) is not None:
            # On an object store only tables that were written with a copy have one.
            continue
        with contextlib.suppress(CorruptDataError, FileNotFoundError):
            content = read_whole(segment_path(store.root, number))
            if hashlib.sha256(content).hexdigest() in committed_tables(store, number):
                write_durably(copy, content)


def restore_tables(store: FeatureStore) -> list[int]:
    """Put copies in the place of tables that are not those of their segments' receipts, and the other way
    round; only the lease holder may. Returns the segments whose table was restored."""
    restored: list[int] = []
    for number in sorted({*store.tables(), *store.lost_tables()}):
        wanted = committed_tables(store, number)
        path, copy = segment_path(store.root, number), table_copy(store.root, number)
        mine, other = (_sha256(p) for p in (path, copy))
        if mine != other and other in wanted:
            rewrite(path, read_whole(copy))
            restored.append(number)
        elif mine != other and mine in wanted and replica_of(copy) is None:
            rewrite(copy, read_whole(path))
    store.forget()
    return restored


def committed_tables(store: FeatureStore, number: int) -> frozenset[str]:
    """SHA-256 of the table that the receipts of a segment were written for: one, if nothing is damaged."""
    found = set[str]()
    for array in sorted(store.committed(number)):
        with contextlib.suppress(CorruptDataError, FileNotFoundError):
            receipt = read_receipt(store.root, number, array)
            if receipt.store_id == store.store_id:
                found.add(receipt.segment_sha256)
    return frozenset(found)


def damaged_copies(store: FeatureStore) -> list[str]:
    """What is wrong with the copies that are there; one that is missing is written with the next data."""
    found: list[str] = []
    try:
        copy = read_copy(store.root)
        if copy is not None and copy != store.record:
            found.append(f"the copy of {store.root / 'store.json'} is another one")
    except CorruptDataError as error:
        found.append(str(error))
    for number in store.tables():
        path, copy = segment_path(store.root, number), table_copy(store.root, number)
        # Of a segment without receipts nobody knows which of the two is right, and nothing is lost.
        wanted = committed_tables(store, number)
        if is_there(copy) and wanted and _sha256(copy) not in wanted:
            found.append(f"{copy} is not a copy of {path}")
    return found


def _sha256(path: Path) -> str | None:
    """Of a file; None if it cannot be read."""
    try:
        fetch_missing([path])
        return hashlib.sha256(read_whole(path)).hexdigest()
    except (CorruptDataError, FileNotFoundError):
        return None
