"""Garbage: everything that neither an experiment's latest run nor anything the user names depends on."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from permafrost.flows.runs import latest_runs, run_files, run_problems, unfinished_runs
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.drafts import DRAFT_PREFIX, is_of_dead_process
from permafrost.storage.durable import remove_tree
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
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
            StoreBusyError: a store is being written.
        """
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
        keep: artifacts (with everything they were made from) and stores to keep as well.
        older: what to do with artifacts whose keys are of an earlier version. No run reuses them now, so no
            latest run refers to them, however good the heads in them are.

    Raises:
        CorruptDataError: the record of a run or a store is damaged, or names something missing, so that it is
            not known what is in use.
        InputError: no run is recorded and nothing is named, so everything would be garbage.
        NotFoundError: a name in `keep` matches nothing.
    """
    artifacts = ArtifactStore(home)
    for problem in (p for path in run_files(home) for p in run_problems(home, path)):
        raise CorruptDataError(f"{problem}. Nothing was removed, as it may be in use")
    runs = [*latest_runs(home), *unfinished_runs(home)]
    every = all_stores(home)
    roots = {ref for run in runs for ref in run.artifacts}
    stores = {store for run in runs for store in run.stores}
    for name in keep:
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


def _reachable(artifacts: ArtifactStore, roots: set[str], stores: set[str]) -> set[str]:
    """The roots and everything they depend on; feature stores among it are added to `stores`."""
    kept, queue = set[str](), list(roots)
    while queue:
        ref = queue.pop()
        if ref in kept:
            continue
        if ref.startswith("features/"):
            stores.add(ref.split("/")[1])
            continue
        kept.add(ref)
        try:
            queue.extend(artifacts.manifest(parse_ref(ref)).spec.inputs)
        except NotFoundError:
            continue
    return kept
