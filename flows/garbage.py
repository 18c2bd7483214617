"""Garbage: everything that neither an experiment's latest run, nor a pinned one, nor one that may be under
way, nor anything the user names depends on."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from permafrost.flows.history import History, Run, find_run, histories, history_problems, names_run
from permafrost.flows.pins import pin_problems, pinned_runs
from permafrost.flows.runs import latest_runs, run_files, run_problems, unfinished_runs
from permafrost.storage.adapted_stores import STORE, adapted_store
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.drafts import DRAFT_PREFIX, is_of_dead_process
from permafrost.storage.durable import remove_tree
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError, StoreBusyError
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import KEY_VERSION


@dataclass(frozen=True)
class Garbage:
    """What may be removed."""

    artifacts: ArtifactStore
    refs: tuple[ArtifactRef, ...]
    stores: tuple[FeatureStore, ...]
    drafts: tuple[Path, ...]
    n_kept: int
    n_older: int
    """How many of those kept have an earlier version of keys and are not used by any latest run."""

    @property
    def folders(self) -> list[Path]:
        """Everything that would be removed."""
        return [
            *(self.artifacts.folder(r) for r in self.refs),
            *(s.root for s in self.stores),
            *self.drafts,
        ]

    def remove(self) -> None:
        """Remove everything; of a store the identity first, under its write lease, so that it never looks
        complete while it is being removed.

        Raises:
            StoreBusyError: a store is being written, or a run that has begun since uses some of it; in the
                second case nothing was removed.
        """
        taken = {str(r) for r in self.refs} | {s.store_id for s in self.stores}
        for run in _under_way(histories(self.artifacts.root.parent)):
            if used := taken.intersection((*run.refs, *run.stores)):
                raise StoreBusyError(
                    f"{run.name} has begun meanwhile and uses {len(used)} of what was to go, such as "
                    f"{min(used)}. Nothing was removed; run the same command again"
                )
        for ref in self.refs:
            self.artifacts.remove(ref)
        for store in self.stores:
            with writing(store):
                remove_tree(store.root, first="store.json")
        for draft in self.drafts:
            shutil.rmtree(draft, ignore_errors=True)


Older = Literal["keep", "remove"]


def collect(home: Path, keep: Sequence[str], older: Older = "keep") -> Garbage:
    """Find garbage under a home.

    Args:
        home: the home.
        keep: artifacts (with everything they were made from), stores and runs (`mine@2`) to keep as well.
        older: what to do with artifacts whose keys are of an earlier version. No run reuses them now, so no
            latest run refers to them, however good the heads in them are.

    Raises:
        CorruptDataError: the record of a run or a store is damaged, or names something missing, so that it is
            not known what is in use.
        InputError: no run is recorded and nothing is named, so everything would be garbage.
        NotFoundError: a name in `keep` matches nothing.
    """
    artifacts, history = ArtifactStore(home), histories(home)
    of_records = [p for path in run_files(home) for p in run_problems(home, path)]
    of_runs = [p for _, p in (*history_problems(history.values()), *pin_problems(home))]
    for problem in (*of_records, *of_runs):
        raise CorruptDataError(f"{problem}. Nothing was removed, as it may be in use")
    runs = [*latest_runs(home), *unfinished_runs(home)]
    # The record of an unfinished run is of one for each experiment, and several may be under way.
    kept_runs = [*pinned_runs(home), *_under_way(history)]
    every = all_stores(home)
    roots = {ref for run in runs for ref in run.artifacts} | {r for k in kept_runs for r in k.refs}
    stores = {s for run in (*runs, *kept_runs) for s in run.stores}
    for name in keep:
        if names_run(name):
            run = find_run(home, name)
            roots.update(run.refs)
            stores.update(run.stores)
            continue
        matches = [s.store_id for s in every if s.store_id.startswith(name)]
        if matches:
            stores.update(matches)
        else:
            roots.add(str(artifacts.find(name)))
    if not roots and not stores:
        raise InputError(
            f"no experiment has finished under {home} and nothing is named with --keep, so everything would "
            f"go; run an experiment first, or delete the folder yourself"
        )
    used = _reachable(artifacts, roots, stores)
    earlier = {str(m.ref) for m in artifacts.all() if m.key_version < KEY_VERSION} - used
    kept = used | _reachable(artifacts, earlier, stores) if older == "keep" else used
    garbage = tuple(m.ref for m in artifacts.all() if str(m.ref) not in kept)
    lost = tuple(s for s in every if s.store_id not in stores)
    n_kept = sum(1 for _ in artifacts.all()) - len(garbage) + len(every) - len(lost)
    # A store is renamed to such a name before it is deleted; a kill in between leaves it. A writer that was
    # killed after its last receipt leaves its folder of drafts to the next writer, which may never come.
    drafts = (
        *artifacts.stale_drafts(),
        *sorted(home.glob(f"features/{DRAFT_PREFIX}*")),
        *(p for p in sorted(home.glob(f"features/*/{DRAFT_PREFIX}*")) if is_of_dead_process(p)),
    )
    return Garbage(artifacts, garbage, lost, drafts, n_kept, len(earlier & kept))


def _under_way(found: Mapping[str, History]) -> list[Run]:
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
