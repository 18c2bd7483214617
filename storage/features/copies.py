"""Copies of what cannot be recomputed: the record of a store and the tables of its segments."""

import contextlib
import hashlib
from pathlib import Path

from permafrost.storage.durable import is_there, read_whole, rewrite, write_durably
from permafrost.storage.errors import CorruptDataError, NotFoundError, UnreadableError
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.record import keep_record, read_copy
from permafrost.storage.features.segments import segment_path, table_copies, table_copy
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.replica import fetch_missing, public_name, replica_of


def keep_copies(store: FeatureStore) -> None:
    """Write the copies that are missing or differ; stores of earlier versions have none. Call it as the lease
    holder. A table is copied only if the segment's receipts confirm it."""
    keep_record(store.root, store.record)
    if replica_of(store.root) is not None:
        return  # on an object store only tables written together with a copy have one
    copies = table_copies(store.root)
    for number in store.tables():
        if number in copies:
            continue
        copy = table_copy(store.root, number)
        with contextlib.suppress(CorruptDataError, FileNotFoundError):
            content = read_whole(segment_path(store.root, number))
            if hashlib.sha256(content).hexdigest() in committed_tables(store, number):
                write_durably(copy, content)


def restore_tables(store: FeatureStore) -> list[int]:
    """Replace tables that do not match their segments' receipts with their copies, and the other way round.
    Call it as the lease holder. Returns the segments whose table was restored."""
    restored: list[int] = []
    for number in sorted({*store.tables(), *store.lost_tables()}):
        committed = committed_tables(store, number)
        path, copy = segment_path(store.root, number), table_copy(store.root, number)
        of_table, of_copy = (_sha256(p) for p in (path, copy))
        if of_table != of_copy and of_copy in committed:
            rewrite(path, read_whole(copy))
            restored.append(number)
        elif of_table != of_copy and of_table in committed and replica_of(copy) is None:
            rewrite(copy, read_whole(path))
    store.forget()
    return restored


def committed_tables(store: FeatureStore, number: int) -> frozenset[str]:
    """SHA-256 of the table that the receipts of a segment were written for; exactly one if all are intact."""
    digests = set[str]()
    for array in sorted(store.committed(number)):
        with contextlib.suppress(CorruptDataError, NotFoundError):
            receipt = read_receipt(store.root, number, array)
            if receipt.store_id == store.store_id:
                digests.add(receipt.segment_sha256)
    return frozenset(digests)


def has_its_table(store: FeatureStore, number: int) -> bool:
    """Whether the table of a segment or its copy is what the segment's receipts were written for.

    Raises:
        UnreadableError: one of the two cannot be read now.
    """
    committed = committed_tables(store, number)
    paths = (segment_path(store.root, number), table_copy(store.root, number))
    return any(_sha256_if_there(path) in committed for path in paths)


def damaged_copies(store: FeatureStore) -> list[str]:
    """Problems with the existing copies; a missing one is written with the next data."""
    problems: list[str] = []
    try:
        copy = read_copy(store.root)
        if copy is not None and copy != store.record:
            problems.append(f"the copy of {public_name(store.root / 'store.json')} differs from it")
    except CorruptDataError as error:
        problems.append(str(error))
    for number in store.tables():
        path, copy = segment_path(store.root, number), table_copy(store.root, number)
        # For a segment without receipts it is not known which of the two is right, but nothing is lost.
        committed = committed_tables(store, number)
        if is_there(copy) and committed and _sha256(copy) not in committed:
            problems.append(f"{public_name(copy)} is not a copy of {public_name(path)}")
    return problems


def _sha256(path: Path) -> str | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        return _sha256_if_there(path)
    except UnreadableError:
        return None


def _sha256_if_there(path: Path) -> str | None:
    try:
        fetch_missing([path])
        return hashlib.sha256(read_whole(path)).hexdigest()
    except (CorruptDataError, FileNotFoundError):
        return None
