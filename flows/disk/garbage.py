"""Garbage: everything that neither an experiment's latest run, nor a pinned one, nor one that may be under
way, nor anything the user names depends on; of that what is old enough, or as much as a quota asks for."""

import shutil
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from permafrost.flows.disk.last_use import Uses, last_uses, made_from
from permafrost.flows.disk.limits import Limits
from permafrost.flows.records.history import (
    History,
    Run,
    find_run,
    histories,
    history_problems,
    names_run,
)
from permafrost.flows.records.pins import pin_problems, pinned_runs
from permafrost.flows.records.runs import latest_runs, run_files, run_problems, unfinished_runs
from permafrost.storage.adapted_stores import STORE, adapted_store, names_of_store
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, Manifest, parse_ref
from permafrost.storage.drafts import DRAFT_PREFIX, is_of_dead_process
from permafrost.storage.durable import bytes_under
from permafrost.storage.errors import (
    CorruptDataError,
    InputError,
    NotFoundError,
    RemovedError,
    StoreBusyError,
)
from permafrost.storage.features.dropping import remove_store
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.writers import writer_of
from permafrost.storage.features.writing import writing
from permafrost.storage.gate import removing
from permafrost.storage.keys import KEY_VERSION
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name, replica_of

Older = Literal["keep", "remove"]


@dataclass(frozen=True)
class Asked:
    """What `collect` was asked for."""

    keep: tuple[str, ...]
    older: Older
    limits: Limits


@dataclass(frozen=True)
class Garbage:
    """What may be removed."""

    asked: Asked
    artifacts: ArtifactStore
    refs: tuple[ArtifactRef, ...]
    """Each before those that it was made from, so that a kill leaves no artifact without its inputs."""
    leftovers: tuple[ArtifactRef, ...]
    """Of these there are files and no manifest."""
    stores: tuple[FeatureStore, ...]
    linked: tuple[FeatureStore, ...]
    """Nothing uses these either, and they are links to folders elsewhere, which are not ours to delete."""
    busy: Mapping[FeatureStore, str]
    """No run uses these either, and who writes them."""
    drafts: tuple[Path, ...]
    draft_bytes: int
    """What the drafts take here, before they are removed; an object store has none."""
    n_kept: int
    n_older: int
    """How many of those kept have an earlier version of keys and are not used by any latest run."""
    uses: Uses | None = None
    """Where limits need it."""

    @property
    def home(self) -> Path:
        """Where it lies."""
        return self.artifacts.root.parent

    @property
    def bytes_left(self) -> int | None:
        """What the home takes without all this; None without limits, which alone need to know."""
        if self.uses is None:
            return None
        going = [*self.names, *map(_name, self.stores)]
        return self.uses.bytes - self.draft_bytes - sum(map(self.uses.bytes_of, going))

    @property
    def folders(self) -> list[Path]:
        """Everything that would be removed."""
        return [
            *(self.artifacts.folder(r) for r in (*self.refs, *self.leftovers)),
            *(s.root for s in self.stores),
            *self.drafts,
        ]

    @property
    def staying(self) -> dict[Path, str]:
        """What stays though no run uses it, and why."""
        links = {
            s.root: f"it is a link to {s.root.readlink()}; delete that folder and the link yourself"
            for s in self.linked
        }
        return links | {s.root: f"{writer} writes it" for s, writer in self.busy.items()}

    @property
    def names(self) -> frozenset[str]:
        """Of artifacts."""
        return frozenset(map(str, (*self.refs, *self.leftovers)))

    def less(self, staying: Container[Path]) -> "Garbage":
        """This without what has stayed, which counts as kept."""
        folders = {str(r): self.artifacts.folder(r) for r in (*self.refs, *self.leftovers)}
        folders |= {_name(store): store.root for store in self.stores}
        return self.only({name for name, folder in folders.items() if folder not in staying})

    def only(self, names: Container[str]) -> "Garbage":
        """What has one of these names, `<stage>/<key>` or `features/<id>`, and the drafts; the rest counts as
        kept."""
        refs = tuple(r for r in self.refs if str(r) in names)
        stores = tuple(s for s in self.stores if _name(s) in names)
        n_more = len(self.refs) + len(self.stores) - len(refs) - len(stores)
        return replace(
            self,
            refs=refs,
            leftovers=tuple(r for r in self.leftovers if str(r) in names),
            stores=stores,
            n_kept=self.n_kept + n_more,
        )

    def remove(self) -> dict[Path, str]:
        """Remove everything that is garbage still: a run that has begun since keeps what it uses.

        No run begins meanwhile (`storage.gate`). A store is removed under its write lease.

        Returns:
            What stays, and why.

        Raises:
            StoreBusyError: another process is removing something of this home; nothing was removed.
            CorruptDataError: as `collect`; nothing was removed.
        """
        stays, gone = self.staying, list[Path]()
        try:
            self._take_away(stays, gone)
        finally:
            # Nothing reads it any more, so runs need not wait for that; an error, of a full disk for one,
            # does not leave it lying about.
            for path in gone:
                _free(path)
        for path in self.drafts:
            _free(path)
        return {path: why for path, why in stays.items() if path.exists()}

    def _take_away(self, stays: dict[Path, str], gone: list[Path]) -> None:
        """Rename what is garbage still, and note what that is called now, or why it stays."""
        with removing(self.home) as require_closed:
            again = _found(self.home, self.asked)
            going = again.names
            for ref in (*self.refs, *self.leftovers):
                if str(ref) in going:
                    gone.append(self.artifacts.unpublish(ref, require_closed))
                elif self.artifacts.folder(ref).exists():
                    stays[self.artifacts.folder(ref)] = "a run that has begun since uses it"
            ids = {store.store_id for store in again.stores}
            for store in self.stores:
                if store.store_id not in ids:
                    used = "a run that has begun since uses it"
                    stays[store.root] = again.staying.get(store.root, used)
                    continue
                try:
                    with writing(store) as writer:
                        gone.append(remove_store(writer, require_closed))
                except StoreBusyError as error:
                    require_closed()  # which raises, if that is what was lost
                    stays[store.root] = f"{error.writer} writes it"
                except RemovedError:
                    continue


def collect(
    home: Path, keep: Sequence[str], older: Older = "keep", limits: Limits | None = None
) -> Garbage:
    """Find garbage under a home.

    Args:
        home: the home.
        keep: artifacts (with everything they were made from), stores and runs (`mine@2`) to keep as well.
        older: what to do with artifacts whose keys are of an earlier version. No run reuses them now, so no
            latest run refers to them, however good the heads in them are.
        limits: an age or a quota; without them everything goes that nothing has to keep.

    Raises:
        CorruptDataError: the record of a run or a store is damaged, or names something missing, so that it is
            not known what is in use.
        InputError: no run is recorded and nothing is named, so everything would be garbage.
        NotFoundError: a name in `keep` matches nothing.
    """
    limits = limits or Limits()
    found = _found(home, Asked(tuple(keep), older, limits))
    return found if found.uses is None else _limited(found, limits, found.uses)


def _limited(found: Garbage, limits: Limits, uses: Uses) -> Garbage:
    """What was used longest ago, as far as the limits ask for it. Drafts go whatever their age."""
    names = [*map(str, found.refs), *map(str, found.leftovers)]
    names += map(_name, found.stores)
    linked, busy = found.linked, found.busy
    going = uses.latest_last(names)
    if limits.older_than_s is not None:
        before = now() - limits.older_than_s
        going = [name for name in going if uses.time(name) < before]
        linked = tuple(s for s in linked if uses.time(_name(s)) < before)
        busy = {s: writer for s, writer in busy.items() if uses.time(_name(s)) < before}
    if limits.quota_bytes is not None:
        left = uses.bytes - found.draft_bytes
        within = list[str]()
        for name in going:
            if left <= limits.quota_bytes:
                break
            within.append(name)
            left -= uses.bytes_of(name)
        going = within
        if left <= limits.quota_bytes:
            linked, busy = (), {}
    return replace(found.only(set(going)), linked=linked, busy=busy)


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def _name(store: FeatureStore) -> str:
    """What `Uses` calls it."""
    return f"features/{store.store_id}"


def _free(path: Path) -> None:
    """Delete what has been renamed, or was never in its place; another process may do the same."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _found(home: Path, asked: Asked) -> Garbage:
    artifacts, history = ArtifactStore(home), histories(home)
    of_records = [p for path in run_files(home) for p in run_problems(home, path)]
    of_runs = [p for _, p in (*history_problems(history.values()), *pin_problems(home))]
    for problem in (*of_records, *of_runs):
        raise CorruptDataError(f"{problem}. Nothing was removed, as it may be in use")
    # In this order: a run that ends meanwhile is found by what it leaves last, or by what it wrote before.
    going_on = under_way(history)
    runs = [*unfinished_runs(home), *latest_runs(home)]
    kept_runs = [*pinned_runs(home), *going_on]
    every = _stores(home)
    roots = {ref for run in runs for ref in run.artifacts} | {r for k in kept_runs for r in k.refs}
    stores = {s for run in (*runs, *kept_runs) for s in run.stores}
    for name in asked.keep:
        if not name.strip().removeprefix("features/"):
            raise InputError(
                "a name to keep is empty, such as by a variable of a shell that was never set; nothing was "
                "removed"
            )
        if names_run(name):
            run = find_run(home, name)
            roots.update(run.refs)
            stores.update(run.stores)
            continue
        if (store := _store_to_keep(name, every, artifacts)) is not None:
            stores.add(store)
        else:
            roots.add(str(artifacts.find(name)))
    if not roots and not stores and asked.limits == Limits():
        raise InputError(
            f"no experiment has finished under {public_name(home)} and nothing is named with --keep, so "
            "everything would go; run an experiment first, or delete that home yourself"
        )
    used = _reachable(artifacts, roots, stores)
    busy = {s: who for s in every if s.store_id not in stores and (who := writer_of(s)) is not None}
    for store in busy:
        stores.add(store.store_id)
        names = names_of_store(artifacts, store.store_id)
        used |= _reachable(artifacts, {f"{STORE}/{name}" for name in names}, stores)
    manifests = _dependents_first(list(artifacts.all()))
    earlier = {str(m.ref) for m in manifests if m.key_version < KEY_VERSION} - used
    kept = used | _reachable(artifacts, earlier, stores) if asked.older == "keep" else used
    garbage = tuple(m.ref for m in manifests if str(m.ref) not in kept)
    unused = [s for s in every if s.store_id not in stores]
    linked = tuple(s for s in unused if s.root.is_symlink())
    lost = tuple(s for s in unused if s not in linked)
    n_kept = len(manifests) - len(garbage) + len(every) - len(lost)
    # A store is renamed to such a name before it is deleted; a kill in between leaves it. A writer that was
    # killed after its last receipt leaves its folder of drafts to the next writer, which may never come.
    drafts = (
        *artifacts.stale_drafts(),
        *sorted(home.glob(f"features/{DRAFT_PREFIX}*")),
        *(p for p in sorted(home.glob(f"features/*/{DRAFT_PREFIX}*")) if is_of_dead_process(p)),
    )
    return Garbage(
        asked=asked,
        artifacts=artifacts,
        refs=garbage,
        leftovers=tuple(r for r in artifacts.leftovers() if str(r) not in kept),
        stores=lost,
        linked=linked,
        busy=busy,
        drafts=drafts,
        draft_bytes=0 if replica_of(home) is not None else sum(map(bytes_under, drafts)),
        n_kept=n_kept,
        n_older=len(earlier & kept),
        uses=None
        if asked.limits == Limits()
        else last_uses(home, [r for h in history.values() for r in h.runs], manifests),
    )


def _stores(home: Path) -> list[FeatureStore]:
    try:
        return all_stores(home)
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}. Nothing was removed, as it may be in use") from error


def _store_to_keep(
    name: str, every: Sequence[FeatureStore], artifacts: ArtifactStore
) -> str | None:
    """The id of the store that a name is the beginning of; None if there is no such one.

    Raises:
        InputError: it may be another store or an artifact as well; nothing was removed.
    """
    begins = name.removeprefix("features/")
    found = [f"features/{s.store_id}" for s in every if s.store_id.startswith(begins)]
    stores = len(found)
    if stores and begins == name:
        found += [str(ref) for ref in artifacts.refs() if ref.key.startswith(name)]
    if len(found) > 1:
        raise InputError(
            f"--keep {quoted(name)} is ambiguous ({len(found)}: {', '.join(f[:27] for f in found[:4])}); "
            "give more digits. Nothing was removed"
        )
    return found[0].removeprefix("features/") if stores else None


def _dependents_first(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Each before those of what it was made from."""
    known = {str(m.ref): m for m in manifests}
    inputs_first: dict[str, Manifest] = {}
    for manifest in manifests:
        waiting = [(manifest, False)]
        while waiting:
            one, is_after_inputs = waiting.pop()
            if str(one.ref) in inputs_first:
                continue
            if is_after_inputs:
                inputs_first[str(one.ref)] = one
                continue
            waiting.append((one, True))
            waiting += [(known[name], False) for name in made_from(one) if name in known]
    return list(inputs_first.values())[::-1]


def under_way(found: Mapping[str, History]) -> list[Run]:
    """Runs that may be going on."""
    return [run for history in found.values() for run in history.runs if run.may_be_running]


def _reachable(artifacts: ArtifactStore, roots: set[str], stores: set[str]) -> set[str]:
    """The roots and everything they depend on; feature stores among it are added to `stores`."""
    kept, queue = set[str](), list(roots)
    while queue:
        ref = queue.pop()
        if ref in kept:
            continue
        if ref.startswith("features/"):
            name = ref.split("/")[1]
            stores.add(name)
            # If it is one of an adapted backbone, what says which.
            queue.append(f"{STORE}/{name}")
            continue
        kept.add(ref)
        try:
            queue.extend(artifacts.manifest(parse_ref(ref)).spec.inputs)
        except NotFoundError:
            continue
        stage, _, key = ref.partition("/")
        if stage == STORE and (known := adapted_store(artifacts, key)) is not None:
            stores.add(known.identity.store_id)
    return kept
