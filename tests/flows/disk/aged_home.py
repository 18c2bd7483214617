"""A home of artifacts and a store that were last used at different times."""

import datetime
import os
from pathlib import Path

from permafrost.flows.disk.garbage import collect
from permafrost.flows.disk.limits import Limits
from permafrost.flows.records.runs import RunRecord, write_run
from permafrost.storage.artifacts import ArtifactRef, ArtifactSpec, ArtifactStore
from permafrost.storage.features.store import FeatureStore
from tests.flows.run_records import finished
from tests.storage.small_store import filled_store

NOW = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC).timestamp()
"""Eight days after the runs of `run_records`."""
DAY = 24 * 3600.0
SIZE = 200_000


def publish(home: Path, name: str, days: float, inputs: tuple[str, ...] = ()) -> ArtifactRef:
    """An artifact whose files were written so many days ago."""
    spec = ArtifactSpec(stage="fit", config={"name": name}, inputs=inputs)
    artifacts = ArtifactStore(home)
    with artifacts.publishing(spec, {}) as draft:
        (draft.folder / "numbers.bin").write_bytes(os.urandom(SIZE))
    written(artifacts.folder(spec.ref), days)
    return spec.ref


def written(folder: Path, days: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (NOW - days * DAY, NOW - days * DAY))


class Aged:
    """A home of artifacts that were last used at different times."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.latest = publish(home, "latest", 1000)
        write_run(
            home, RunRecord(experiment="x", finished="", artifacts=(str(self.latest),), stores=())
        )
        self.months = publish(home, "months", 100)
        self.source = publish(home, "source", 90)
        self.derived = publish(home, "derived", 20, inputs=(str(self.source),))
        self.store = filled_store(home, 3).store
        written(self.store.root, 15)
        self.ran = publish(home, "ran", 500)
        finished(home, "mine", [str(self.ran)])
        self.future = publish(home, "future", -400)
        self.in_order: list[ArtifactRef | FeatureStore] = [
            self.months,
            self.derived,
            self.source,
            self.store,
            self.ran,
            self.future,
        ]
        """As they go."""

    def going(self, limits: Limits) -> list[str]:
        found = collect(self.home, [], limits=limits)
        return sorted(str(p.relative_to(self.home)) for p in found.folders)

    def paths(self, n: int) -> list[str]:
        return sorted(
            f"artifacts/{one}" if isinstance(one, ArtifactRef) else f"features/{one.store_id}"
            for one in self.in_order[:n]
        )
