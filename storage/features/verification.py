"""Verifying every committed byte, and discarding exactly what is damaged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

from permafrost.storage.durable import (
    is_there,
    read_json,
    remove,
    remove_any,
)
from permafrost.storage.errors import CorruptDataError, NotFoundError, UnreadableError
from permafrost.storage.features.copies import damaged_copies, has_its_table
from permafrost.storage.features.due import due_problems
from permafrost.storage.features.groups import group_problem
from permafrost.storage.features.layout import earlier_metadata
from permafrost.storage.features.projections import (
    drop_projection,
    projection_groups,
    read_projection,
    stored_projections,
    write_projection_groups,
)
from permafrost.storage.features.rebuilding import disagreements
from permafrost.storage.features.receipts import revoke_receipt
from permafrost.storage.features.segments import segment_path, table_copy
from permafrost.storage.features.shard_bytes import ADVICE
from permafrost.storage.features.store import DERIVED, FeatureStore
from permafrost.storage.features.writing import StoreWriter, lock_path
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.ragged import offsets_of
from permafrost.storage.replica import public_name, replica_of

PROJECTION = "projections/o_proj/"
LOOKS = 3
"""At what seems damaged on an object store: what another machine writes arrives file by file."""
_NO_TABLE = "segment {} has receipts but no table"

P = ParamSpec("P")


@dataclass(frozen=True)
class Damage:
    """One problem, and the smallest part that has to be recomputed for it."""

    segment: int | None
    """None: Zarr metadata, which is rewritten without computing anything."""
    array: str | None
    """None with a segment: its table, and so the whole segment."""
    problem: str


def verify(store: FeatureStore, progress: Progress) -> list[Damage]:
    """Read every table, receipt and shard, and check each against the others.

    Damage is returned, never raised, and so is what cannot be read now, which `still_damaged` tells apart. On
    an object store other machines may write meanwhile: damage there is what is found at each of a few looks.
    """
    if (replica := replica_of(store.root)) is not None:
        replica.renew(store.root, progress)
    store.forget()  # check what is on disk, not what is cached
    if wrong := disagreements(store):
        # With a wrong record everything intact would look damaged.
        return [Damage(None, None, problem) for problem in wrong]
    found = _looked(store, store.tables(), lambda segment, array: True, progress)
    for _ in range(LOOKS - 1):
        if replica is not None and found:
            replica.pull(store.root, SilentProgress())
            found = _held(store, found)
    return found


def _held(store: FeatureStore, found: Sequence[Damage]) -> list[Damage]:
    """What of the damage that was found is there now, with that behind a table that is right now."""
    store.forget()
    before = {_what(item) for item in found}
    numbers = [n for n in store.tables() if n in {item.segment for item in found}]

    def was_found(segment: int | None, array: str | None) -> bool:
        return (segment, array, "") in before or (segment, None, "") in before

    again = _looked(store, numbers, was_found, SilentProgress())
    return [d for d in again if _what(d) in before or was_found(d.segment, d.array)]


def _what(item: Damage) -> tuple[int | None, str | None, str]:
    """What is damaged, however its problem is told."""
    is_named = item.segment is not None or item.array is not None
    return item.segment, item.array, "" if is_named else item.problem


def _looked(
    store: FeatureStore,
    numbers: Sequence[int],
    is_chosen: Callable[[int, str], bool],
    progress: Progress,
) -> list[Damage]:
    """Damage of what belongs to the whole store, of some segments' tables, and of chosen cells there."""
    noted = (*damaged_copies(store), *due_problems(store))
    damage = [Damage(None, None, problem) for problem in noted]
    damage += _verify_lock(store)
    damage += _verify_metadata(store)
    cells = [(s, a) for s in numbers for a in sorted(store.committed(s)) if is_chosen(s, a)]
    progress.start("verify", len(cells), "cells")
    try:
        for number in numbers:
            problem = _or_unread(table_problem, store, number)
            if problem:
                damage.append(Damage(number, None, problem))
        broken = {d.segment for d in damage}
        for segment, array in cells:
            if segment not in broken:
                problem = _or_unread(_verify_cell, store, segment, array)
                # What was dropped since the cells were listed is not damaged.
                if problem and array in store.committed(segment):
                    damage.append(Damage(segment, array, problem))
            progress.advance(1, f"{len(damage)} damaged")
    finally:
        progress.finish()
    damage += _verify_projections(store)
    for number in store.lost_tables():
        damage.append(Damage(number, None, _NO_TABLE.format(number)))
    return damage


def _or_unread(check: Callable[P, str | None], *args: P.args, **kwargs: P.kwargs) -> str | None:
    try:
        return check(*args, **kwargs)
    except UnreadableError as error:
        return str(error)


def still_damaged(
    store: FeatureStore, damage: Iterable[Damage], restored: Iterable[int]
) -> list[Damage]:
    """What is still damaged of what `verify` found before the lease was held: another repair may have ended
    since, and a read may have failed once. Call it as the lease holder, before `discard`.

    Segments whose table is right now, the `restored` ones among them, are checked whole, as `verify` has not
    looked behind their tables. A table is never among the damage if it or its copy is what the receipts say.

    Raises:
        UnreadableError: something cannot be read, so that it is not known whether it is damaged.
    """
    store.forget()
    damage, tables = list(damage), store.tables()
    of_tables = {d.segment for d in damage if d.segment is not None and d.array is None}
    found = [d for d in damage if d.segment is None and not _is_right_now(store, d)]
    for number in sorted(of_tables.union(restored)):
        if number in tables:
            problem = table_problem(store, number)
        else:
            problem = _NO_TABLE.format(number) if store.committed(number) else None
        if problem is None:
            found += _damaged_of(store, [(number, a) for a in sorted(store.committed(number))])
        elif not has_its_table(store, number):
            found.append(Damage(number, None, problem))
    cells = [(d.segment, d.array) for d in damage if d.segment is not None and d.array is not None]
    return found + _damaged_of(store, [c for c in cells if c[0] not in of_tables.union(restored)])


def _is_right_now(store: FeatureStore, item: Damage) -> bool:
    if item.array is None or not item.array.startswith(PROJECTION):
        return False
    block = int(item.array.removeprefix(PROJECTION))
    return block not in stored_projections(store) or _projection_problem(store, block) is None


def _damaged_of(store: FeatureStore, cells: Iterable[tuple[int, str]]) -> list[Damage]:
    """What is damaged of these cells; those that were dropped are not."""
    found: list[Damage] = []
    for segment, array in cells:
        problem = _verify_cell(store, segment, array)
        if problem and array in store.committed(segment):
            found.append(Damage(segment, array, problem))
    return found


def _verify_lock(store: FeatureStore) -> list[Damage]:
    path = lock_path(store)
    if is_there(path) and (path.is_symlink() or not path.is_file()):
        return [Damage(None, None, f"{path} is not a file, so nobody can write to this store")]
    return []


def _verify_metadata(store: FeatureStore) -> list[Damage]:
    last: dict[str, int] = {}
    for segment in store.tables():
        last.update(dict.fromkeys(filter(store.is_array, store.committed(segment)), segment))
    found: list[Damage] = []
    n_slots = store.n_slots()
    for array, segment in sorted(last.items()):
        path = store.zarr_path / array / "zarr.json"
        try:
            content = read_json(path)
        except (CorruptDataError, FileNotFoundError) as error:
            found.append(Damage(None, array, f"{public_name(path)}: {error}"))
            continue
        # A killed writer may have extended some arrays but not others; each must cover its own cells.
        wanted = [store.array_metadata(array, n) for n in range(segment + 1, n_slots + 1)]
        if content not in wanted and content not in map(earlier_metadata, wanted):
            found.append(
                Damage(None, array, f"{public_name(path)} does not describe this store's {array}")
            )
    groups = {store.zarr_path / p / "zarr.json" for a in last for p in Path(a).parents}
    if stored_projections(store):
        groups.update(projection_groups(store))
    problems = (group_problem(store, path) for path in sorted(groups))
    return found + [Damage(None, None, problem) for problem in problems if problem is not None]


def _verify_projections(store: FeatureStore) -> list[Damage]:
    found: list[Damage] = []
    for block in stored_projections(store):
        problem = _or_unread(_projection_problem, store, block)
        if problem:
            found.append(Damage(None, f"{PROJECTION}{block}", problem))
    return found


def _projection_problem(store: FeatureStore, block: int) -> str | None:
    try:
        read_projection(store, block)
    except CorruptDataError as error:
        return str(error)
    return None


def table_problem(store: FeatureStore, number: int) -> str | None:
    """What is wrong with the table of a segment, its texts and their digests included; None if nothing is."""
    try:
        segment = store.segment(number)
    except CorruptDataError as error:
        return str(error)
    axes, table = store.record.axes, segment.table
    starts = table.column("token_start").to_numpy() - number * axes.segment_tokens
    rows = table.column("text_row").to_numpy() - number * axes.segment_texts
    if starts.tolist() != offsets_of(segment.lengths)[:-1].tolist():
        return f"the rows of segment {number} are not contiguous"
    if rows.tolist() != list(range(segment.n_texts)):
        return f"the text rows of segment {number} are not 0..{segment.n_texts - 1}"
    digests = table.column("digest").to_pylist()
    for text, digest in zip(table.column("text").to_pylist(), digests, strict=True):
        if text_digest(text) != digest:
            return f"a text of segment {number} has the digest {text_digest(text)}, its row says {digest}"
    return None


def _verify_cell(store: FeatureStore, segment: int, array: str) -> str | None:
    try:
        receipt = store.checked_receipt(segment, array)
        expected = store.segment(segment).rows(store.spec(array).axis)
        if receipt.n_rows != expected:
            return f"the receipt counts {receipt.n_rows} rows, the segment has {expected}"
        store.reopen_shard(segment, array).verify()
    except (CorruptDataError, NotFoundError) as error:
        return str(error).replace(ADVICE, "")
    return None


def free_lock(store: FeatureStore) -> None:
    """Remove whatever damage put in the place of the lock file; nobody can hold that."""
    if _verify_lock(store):
        remove_any(lock_path(store))


def damaged_cells(damage: Iterable[Damage]) -> dict[int, tuple[str, ...]]:
    """What `discard` drops and only the backbone can make again, by segment."""
    found: dict[int, tuple[str, ...]] = {}
    for item in damage:
        if item.segment is not None and item.array is not None and item.array not in DERIVED:
            found[item.segment] = (*found.get(item.segment, ()), item.array)
    return found


def damaged_projections(damage: Iterable[Damage]) -> list[int]:
    """Blocks whose output projection `discard` drops."""
    return [
        int(item.array.removeprefix(PROJECTION))
        for item in damage
        if item.array is not None and item.array.startswith(PROJECTION)
    ]


def discard(writer: StoreWriter, damage: Sequence[Damage]) -> dict[int, tuple[str, ...]]:
    """Remove what is damaged, receipts first, so that it can be recomputed. What was found before the lease
    was held has to be checked again first, by `still_damaged`.

    Intact cells are not touched. A segment with a damaged table is dropped entirely (its texts are then not
    in the store any more). Zarr metadata is rewritten, and so is what follows from the tables.

    Returns:
        The dropped cells of the segments that still have their table, but for those written again.
    """
    store = writer.store
    for item in damage:
        if item.segment is None:
            if item.array is not None and item.array.startswith(PROJECTION):
                writer.require_lease()
                drop_projection(store, int(item.array.removeprefix(PROJECTION)))
            continue
        assert item.array is not None or not has_its_table(store, item.segment), (
            f"the texts of segment {item.segment} are there"
        )
        arrays = sorted(store.committed(item.segment)) if item.array is None else [item.array]
        for array in arrays:
            writer.require_lease()
            revoke_receipt(store.root, item.segment, array)
            if store.is_array(array):
                remove(store.shard_path(item.segment, array))
        if item.array is None:
            writer.require_lease()
            remove(segment_path(store.root, item.segment))
            remove(table_copy(store.root, item.segment))
    store.forget()
    writer.declare(store.arrays())
    if stored_projections(store):
        write_projection_groups(store)
    return damaged_cells(damage)
