"""Dropping layers or kinds from a feature store of a home, unless a run reads them."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from permafrost.flows.disk.garbage import under_way
from permafrost.flows.records.history import histories
from permafrost.flows.records.pins import pinned_runs
from permafrost.flows.records.read_arrays import arrays_read
from permafrost.flows.records.runs import latest_runs, unfinished_runs
from permafrost.flows.sharing import chosen_store
from permafrost.storage.adapted_stores import STORE, names_of_store
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import InputError, StoreBusyError
from permafrost.storage.features.dropping import (
    ArrayDrop,
    arrays_to_drop,
    drop_arrays,
    left_behind,
)
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.waiting import writing_when_free
from permafrost.storage.features.writing import writing
from permafrost.storage.gate import removing
from permafrost.storage.progress import Progress
from permafrost.storage.replica import public_name

Allowed = Literal["unused", "used"]
"""Whether arrays that a latest, pinned or unfinished run read may be dropped, too."""


@dataclass(frozen=True)
class Reader:
    """A run that reads arrays of the store."""

    name: str
    what: Literal["latest", "pinned", "unfinished", "running"]
    arrays: frozenset[str] | None
    """None: which is not known, so it may be any."""

    @property
    def reads(self) -> str:
        """The verb for people."""
        return "may read" if self.arrays is None else "reads"


@dataclass(frozen=True)
class DropPlan:
    """What is to be dropped of a store."""

    home: Path
    store: FeatureStore
    arrays: tuple[ArrayDrop, ...]
    readers: tuple[Reader, ...]
    """Runs that read some of these arrays."""
    dropped_already: tuple[str, ...] = ()
    """Arrays that were named and of which nothing is left."""
    left_behind: int = 0
    """Bytes of a drop that was killed while it freed them."""

    @property
    def n_bytes(self) -> int:
        """What is freed."""
        return self.left_behind + sum(drop.bytes for drop in self.arrays)

    def require_allowed(self, allowed: Allowed) -> None:
        """Check that no run needs what would be dropped.

        Raises:
            StoreBusyError: a run that is going on reads it.
            InputError: a latest, pinned or unfinished run reads it, and that is not allowed.
        """
        store, end = f"the store {self.store.store_id[:12]}", "Nothing was dropped"
        for reader in self.readers:
            if reader.what == "running":
                raise StoreBusyError(
                    f"{reader.name} is going on and {reader.reads} {self._named(reader)} of {store}; wait "
                    "until it has "
                    f"ended. {end}"
                )
        if self.readers and allowed == "unused":
            reader = self.readers[0]
            raise InputError(
                f"the {reader.what} run {reader.name} {reader.reads} {self._named(reader)} of {store}. "
                f"{end}; with --used "
                "(in Python used=True) they are, and the next run that needs them extracts them again"
            )

    def _named(self, reader: Reader) -> str:
        names = [d.array for d in self.arrays if reader.arrays is None or d.array in reader.arrays]
        return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "home": public_name(self.home.absolute()),
            "store_id": self.store.store_id,
            "arrays": [vars(drop) for drop in self.arrays],
            "dropped_already": list(self.dropped_already),
            "left_behind": self.left_behind,
            "bytes": self.n_bytes,
            "read_by": [
                {
                    "run": r.name,
                    "what": r.what,
                    "arrays": self._named(r).split(", "),
                    "is_known": r.arrays is not None,
                }
                for r in self.readers
            ],
        }


def plan_drop(home: Path, name: str | None, patterns: Sequence[str]) -> DropPlan:
    """What dropping these arrays would free, and which runs read them; writes nothing.

    Args:
        home: the home.
        name: beginning of the store's id; None for the only one.
        patterns: names of arrays, or patterns of them.

    Raises:
        NotFoundError: there is no such store or array.
        InputError: a name fits several, no array is named, or one that every text needs.
        CorruptDataError: the record of a run is damaged, so that it is not known what is in use.
    """
    store = chosen_store(home, name)
    if not patterns:
        there = ", ".join(store.arrays())
        raise InputError(
            "name the arrays to drop with --arrays (in Python arrays=), as in "
            "'hidden/3,values/*'; the store "
            f"{store.store_id[:12]} has {there or 'none'}"
        )
    named = arrays_to_drop(store, patterns)
    arrays = tuple(drop for drop in named if drop.is_there)
    names = {drop.array for drop in arrays}
    readers = tuple(
        r
        for r in (_readers(home, store) if arrays else ())
        if r.arrays is None or not names.isdisjoint(r.arrays)
    )
    gone = tuple(drop.array for drop in named if not drop.is_there)
    return DropPlan(home, store, arrays, readers, gone, left_behind(store))


def drop_planned(
    plan: DropPlan, allowed: Allowed, progress: Progress, busy: Literal["end", "wait"] = "end"
) -> DropPlan:
    """Drop what was planned; what has gone or come since is left alone.

    No run begins meanwhile (`storage.gate`), and the store has no other writer.

    Returns:
        What was dropped.

    Raises:
        InputError, StoreBusyError: as `DropPlan.require_allowed`, by what runs now; or another process
            writes to the store, or removes something of the home. Nothing was dropped.
    """
    store, names = plan.store, [*(drop.array for drop in plan.arrays), *plan.dropped_already]
    with ExitStack() as stack:
        lease = writing(store) if busy == "end" else writing_when_free(store, progress)
        writer = stack.enter_context(lease)
        require_closed = stack.enter_context(removing(plan.home))
        now = plan_drop(plan.home, store.store_id, names)
        now.require_allowed(allowed)
        # Those that are gone as well: a kill may have left a projection or the store's metadata behind.
        drop_arrays(writer, names, require_closed)
    # The writer has freed it.
    return replace(now, left_behind=plan.left_behind)


def _readers(home: Path, store: FeatureStore) -> list[Reader]:
    """Runs that read the store, those that are going on first."""
    artifacts = ArtifactStore(home)
    names_in_keys = names_of_store(artifacts, store.store_id)
    adapted = {f"{STORE}/{name}" for name in names_in_keys}

    def reads(refs: Iterable[str], stores: Iterable[str]) -> bool:
        # A run that trains the backbone of a store does not know its id when it begins.
        return store.store_id in stores or not adapted.isdisjoint(refs)

    going_on = [r for r in under_way(histories(home)) if reads(r.refs, r.stores)]
    found = [
        Reader(r.name, "running" if r.state == "running" else "unfinished", None) for r in going_on
    ]
    names = {r.begun.experiment for r in going_on}
    found += [
        Reader(record.experiment, "unfinished", None)
        for record in unfinished_runs(home)
        if reads(record.artifacts, record.stores) and record.experiment not in names
    ]
    found += [
        Reader(run.name, "pinned", arrays_read(artifacts, names_in_keys, run.refs))
        for run in pinned_runs(home)
        if reads(run.refs, run.stores)
    ]
    return found + [
        Reader(record.experiment, "latest", arrays_read(artifacts, names_in_keys, record.artifacts))
        for record in latest_runs(home)
        if reads(record.artifacts, record.stores)
    ]
