"""Repairing a store: what has a copy is restored, what can be recomputed is marked as missing."""

from dataclasses import dataclass
from pathlib import Path

from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.copies import restore_tables
from permafrost.storage.features.due import Due, note_due, read_due
from permafrost.storage.features.rebuilding import rebuild_record
from permafrost.storage.features.receipts import Receipt, read_receipt
from permafrost.storage.features.record import keep_record, read_record
from permafrost.storage.features.store import DERIVED, FeatureStore
from permafrost.storage.features.verification import (
    Damage,
    damaged_cells,
    damaged_projections,
    discard,
    free_lock,
    still_damaged,
    verify,
)
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import Progress


@dataclass(frozen=True)
class Mended:
    """What was found and repaired, and what has to be recomputed."""

    store: FeatureStore
    problems: list[str]
    """All problems found, including those that are repaired."""
    restored_tables: list[int]
    """Segments whose table was restored from its copy."""
    dropped_segments: list[int]
    """Segments with neither a table nor a copy; their texts are not in the store any more."""
    cells: dict[int, tuple[str, ...]]
    """Cells to recompute, by segment; also those that an earlier repair dropped, which did not end."""
    receipts: dict[tuple[int, str], Receipt]
    """The former receipts of these cells, as far as they could be read."""
    projections: list[int]
    """Blocks whose output projection has to be stored again."""


def mend(root: Path, progress: Progress) -> Mended:
    """Restore what can be restored in the store in `root`, and mark the rest of what is damaged as missing.

    What is intact is not touched: no array with intact shards is rewritten.

    Raises:
        CorruptDataError: `store.json` is damaged and cannot be rebuilt; nothing was changed.
        StoreBusyError: another process is writing to this store.
        UnreadableError: something cannot be read, so that it is not known whether it is damaged; nothing was
            removed.
    """
    problems: list[str] = []
    record = rebuild_record(root)
    try:
        if read_record(root) != record:
            problems.append(f"{root / 'store.json'} disagrees with its arrays and its copy")
    except (CorruptDataError, InputError) as error:
        problems.append(str(error))
    if problems:
        keep_record(root, record)
    store = FeatureStore(root, record)
    damage = verify(store, progress)
    problems += [d.problem for d in damage]
    free_lock(store)
    with writing(store) as writer:
        restored = restore_tables(store)
        damage = still_damaged(store, damage, restored)
        problems += [d.problem for d in damage if d.problem not in problems]
        receipts = _known_receipts(store, damage)
        # Noted first: a repair that is killed has dropped cells that nothing else would tell of.
        noted = _noted(store).and_also(damaged_cells(damage), damaged_projections(damage))
        note_due(store, noted)
        discard(writer, damage)
        due = read_due(store)
        note_due(store, due)
    return Mended(
        store=store,
        problems=problems,
        restored_tables=restored,
        dropped_segments=[d.segment for d in damage if d.segment is not None and d.array is None],
        cells=due.cells,
        receipts=receipts,
        projections=list(due.projections),
    )


def _noted(store: FeatureStore) -> Due:
    """What a repair that did not end has left to do; nothing if its note is damaged, which `verify` told."""
    try:
        return read_due(store)
    except CorruptDataError:
        return Due()


def _known_receipts(store: FeatureStore, damage: list[Damage]) -> dict[tuple[int, str], Receipt]:
    found: dict[tuple[int, str], Receipt] = {}
    for item in damage:
        if item.segment is not None and item.array not in (None, *DERIVED):
            try:
                receipt = read_receipt(store.root, item.segment, item.array)
            except (CorruptDataError, NotFoundError):
                continue
            found[item.segment, item.array] = receipt
    return found
