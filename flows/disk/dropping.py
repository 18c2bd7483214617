"""What garbage collection would take, in the words of experiments: by run, and what each artifact is of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from permafrost.flows.disk.garbage import Garbage
from permafrost.flows.records.history import History, Run
from permafrost.flows.records.listing import Row, list_artifacts
from permafrost.storage.artifacts import ArtifactRef
from permafrost.storage.durable import bytes_under
from permafrost.storage.features.store import FeatureStore

NO_RUN = "no recorded run"


@dataclass(frozen=True)
class Dropped:
    """One thing that would be removed."""

    path: str
    """Under the home."""
    bytes: int
    """On disk."""
    run: str | None
    """The latest run that used it, `mine@1`; None if no record names it."""
    what: str
    """In words."""
    row: Row | None
    """Of an artifact."""

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        of = [] if self.row is None else [cell.model_dump() for cell in self.row.of]
        stage = None if self.row is None else self.row.ref.stage
        experiment = None if self.run is None else self.run.rpartition("@")[0]
        return {
            "path": self.path,
            "bytes": self.bytes,
            "experiment": experiment,
            "run": self.run,
            "stage": stage,
            "of": of,
            "what": self.what,
        }


def dropped(home: Path, garbage: Garbage, histories: Mapping[str, History]) -> list[Dropped]:
    """Everything that would be removed, by the latest run that used it."""
    runs = sorted((r for h in histories.values() for r in h.runs), key=lambda r: r.time)
    users = _latest_users(runs)
    rows = {row.ref: row for row in list_artifacts(home, histories.values()).rows}
    found = [
        *(
            _artifact(home, garbage, ref, rows.get(ref), users.get(str(ref)))
            for ref in garbage.refs
        ),
        *(_store(home, store, users.get(f"features/{store.store_id}")) for store in garbage.stores),
        *(_leftover(home, garbage, ref) for ref in garbage.leftovers),
        *(_draft(home, draft) for draft in garbage.drafts),
    ]
    order = {run.name: i for i, run in enumerate(runs)}
    return sorted(found, key=lambda d: len(order) if d.run is None else order[d.run])


def _latest_users(runs: Sequence[Run]) -> dict[str, str]:
    names = {ref: run.name for run in runs for ref in run.refs}
    return names | {f"features/{store}": run.name for run in runs for store in run.stores}


def _artifact(
    home: Path, garbage: Garbage, ref: ArtifactRef, row: Row | None, run: str | None
) -> Dropped:
    folder = garbage.artifacts.folder(ref)
    words = [ref.stage]
    if row is not None:
        seeds = f"seed {row.seeds}" if row.seeds else ""
        words += [word for word in (row.methods, row.tasks, seeds, row.candidate) if word]
    path = folder.relative_to(home).as_posix()
    return Dropped(path, bytes_under(folder), run, " · ".join(words), row)


def _store(home: Path, store: FeatureStore, run: str | None) -> Dropped:
    record = store.record
    what = f"features of {record.backbone['source']} under {record.identity.recipe['kind']}"
    path = store.root.relative_to(home).as_posix()
    return Dropped(path, bytes_under(store.root), run, what, None)


def _leftover(home: Path, garbage: Garbage, ref: ArtifactRef) -> Dropped:
    folder = garbage.artifacts.folder(ref)
    path = folder.relative_to(home).as_posix()
    return Dropped(path, bytes_under(folder), None, "files of an artifact that is gone", None)


def _draft(home: Path, draft: Path) -> Dropped:
    path = draft.relative_to(home).as_posix()
    return Dropped(path, bytes_under(draft), None, "an unfinished write", None)
