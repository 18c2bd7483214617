"""When each artifact and feature store was last used: by a run, or at least written.

The clock is that of the run records: a run uses what it names until it ends. What no record names was
used when the last of its files was written. What something else was made from was used when that was.
"""

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from permafrost.flows.records.history import Run
from permafrost.storage.adapted_stores import STORE, adapted_store
from permafrost.storage.artifacts import ArtifactStore, Manifest
from permafrost.storage.disk_use import files_of_home
from permafrost.storage.errors import CorruptDataError

_LOCK = "writer.lock"


@dataclass
class Use:
    """What one of them takes, and when it was used."""

    bytes: int = 0
    time: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True)
class Uses:
    """Of everything in a home."""

    of: Mapping[str, Use] = field(default_factory=dict[str, Use])
    """By `<stage>/<key>`, or `features/<store_id>`."""
    bytes: int = 0
    """Of the whole home."""

    def latest_last(self, names: Iterable[str]) -> list[str]:
        """What was used longest ago first; of things used at the same time in the given order."""
        return sorted(names, key=lambda name: self.time(name))

    def time(self, name: str) -> float:
        """When it was last used."""
        return self.of[name].time if name in self.of else 0.0

    def bytes_of(self, name: str) -> int:
        """What it takes."""
        return self.of[name].bytes if name in self.of else 0


def last_uses(home: Path, runs: Iterable[Run], dependents_first: Sequence[Manifest]) -> Uses:
    """When everything in a home was last used, and what it takes.

    Args:
        home: the home.
        runs: every recorded run.
        dependents_first: manifests, each before those of what it was made from.
    """
    found, total = defaultdict[str, Use](Use), 0
    for file in files_of_home(home):
        total += file.bytes
        names = file.path.split("/")
        if len(names) < 3 or names[0] not in ("artifacts", "features"):
            continue
        use = found["/".join(names[1:3]) if names[0] == "artifacts" else "/".join(names[:2])]
        use.bytes += file.bytes
        if names[-1] != _LOCK:
            use.time = max(use.time, file.changed)
    for run in runs:
        ended = _seconds(run)
        for name in (*run.refs, *(f"features/{store}" for store in run.stores)):
            if name in found:
                found[name].time = max(found[name].time, ended)
    for manifest in dependents_first:
        used = found[str(manifest.ref)].time
        for name in (*made_from(manifest), *_named_by(home, manifest)):
            if name in found:
                found[name].time = max(found[name].time, used)
    return Uses(dict(found), total)


def made_from(manifest: Manifest) -> list[str]:
    """`<stage>/<key>` or `features/<store>` of each input; of features of an adapted backbone, too, of what
    says which store that is."""
    names = ["/".join(name.split("/")[:2]) for name in manifest.spec.inputs]
    stores = (n.removeprefix("features/") for n in names if n.startswith("features/"))
    return [*names, *(f"{STORE}/{store}" for store in stores)]


def _named_by(home: Path, manifest: Manifest) -> list[str]:
    """The feature store that an artifact of stage `store` names; as old as that while it is damaged."""
    if manifest.ref.stage != STORE:
        return []
    try:
        known = adapted_store(ArtifactStore(home), manifest.ref.key)
    except (CorruptDataError, OSError):
        return []
    return [] if known is None else [f"features/{known.identity.store_id}"]


def _seconds(run: Run) -> float:
    """When a run ended; when it began, if it has no end."""
    text = run.time if run.ended is None else run.ended.ended
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0  # of a record of an earlier version: the files tell
