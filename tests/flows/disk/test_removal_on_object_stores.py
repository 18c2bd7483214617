"""`gc` on an object store that is killed at any request, and beside runs of other machines."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from permafrost.flows.comparison.comparing import read_side
from permafrost.flows.disk.garbage import collect
from permafrost.flows.records.runs import RunRecord, write_run
from permafrost.storage import replica
from permafrost.storage.adapted_stores import backbone_place
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.drafts import STALE_S
from permafrost.storage.errors import (
    CorruptDataError,
    InputError,
    NotFoundError,
    StoreBusyError,
)
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.gate import pass_gate, removing
from permafrost.storage.lease import Lease
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import Replica
from tests.damage.small_home import CORPUS, FIT, UNUSED, publish
from tests.flows.run_records import begun
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import IDENTITY, SmallStore, new_store

URL = "s3://bucket/lab"
OTHER = IDENTITY.model_copy(update={"max_length": 16})
KEPT = ("artifacts/" + str(CORPUS.ref), "artifacts/" + str(FIT.ref), f"features/{OTHER.store_id}")


class Killed(BaseException):
    """As SIGKILL ends a process: nothing that catches errors catches this."""


@pytest.fixture
def machines(server: ObjectServer, tmp_path: Path) -> "Machines":
    return Machines(server, tmp_path)


class Machines:
    """Each sees the home for the first time."""

    def __init__(self, server: ObjectServer, folder: Path) -> None:
        self.server, self._folder, self._n = server, folder, 0

    def new(self) -> Path:
        self._n += 1
        return replica.attach(URL, self._folder / f"machine {self._n}", SilentProgress())

    def build(self) -> list[SmallStore]:
        """Two stores and three artifacts; the latest run used one store and two artifacts."""
        self.server.objects.clear()
        home, stores = self.new(), list[SmallStore]()
        for identity in (IDENTITY, OTHER):
            stores.append(new_store(home, identity=identity))
            stores[-1].add([f"text {i}" for i in range(9)], list(range(4, 13)))
        for spec in (CORPUS, FIT, UNUSED):
            publish(home, spec)
        record = RunRecord(
            experiment="x", finished="", artifacts=(str(FIT.ref),), stores=(OTHER.store_id,)
        )
        write_run(home, record)
        return stores

    def left(self) -> set[str]:
        """What there are objects of."""
        keys = (key.removeprefix("bucket/lab/").split("/") for key in self.server.objects)
        return {"/".join(k[:3] if k[0] == "artifacts" else k[:2]) for k in keys if k[0] != "runs"}


def killed_after(patch: pytest.MonkeyPatch, n: int) -> None:
    """The process ends in the middle of the n-th request to delete."""
    left, delete, delete_all = [n], Replica.delete, Replica.delete_all

    def one(self: Replica, path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        delete(self, path)

    def several(self: Replica, folder: Path, keys: Sequence[str]) -> None:
        left[0] -= 1
        if left[0] < 0:
            delete_all(self, folder, keys[: len(keys) // 2])
            raise Killed
        delete_all(self, folder, keys)

    patch.setattr(Replica, "delete", one)
    patch.setattr(Replica, "delete_all", several)


def killed_gc(machines: Machines, step: int) -> tuple[bool, int]:
    """Whether gc was killed, and of how many artifacts it left files without a manifest; another machine's
    next gc removes the rest."""
    machines.build()
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, step)
        try:
            collect(machines.new(), []).remove()
            killed = False
        except Killed:
            killed = True
    home = machines.new()
    for store in all_stores(home):
        assert verify(store, SilentProgress()) == [], step
    assert not collect(home, []).leftovers, "they may be of a publication that is under way"
    for key in machines.server.objects:
        machines.server.times[key] = time.time() - STALE_S - 60
    found = collect(home, [])
    assert found.remove() == {}
    assert machines.left() == set(KEPT), step
    assert collect(machines.new(), []).folders == []
    return killed, len(found.leftovers)


@pytest.mark.deep
def test_files_whose_manifest_a_killed_gc_has_removed_are_found_by_the_next(
    machines: Machines,
) -> None:
    assert killed_gc(machines, 1) == (True, 1)


@pytest.mark.deep
def test_gc_may_be_killed_at_any_request(machines: Machines) -> None:
    steps = 0
    while killed_gc(machines, steps)[0]:
        steps += 1
    assert steps >= 5


def test_gc_that_was_halted_in_a_store_says_so_and_leaves_the_rest(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.build()
    found = collect(machines.new(), [])
    (store,) = found.stores
    real, halted = Replica.delete_all, list[str]()

    def slept(self: Replica, folder: Path, keys: Sequence[str]) -> None:
        real(self, folder, keys)
        if folder.parent.name == "features":
            halted.append(folder.name)

    def lost(lease: Lease) -> str | None:
        return "not renewed for 200 s" if halted and "removing" in lease._url else None

    monkeypatch.setattr(Replica, "delete_all", slept)
    monkeypatch.setattr(Lease, "lost", property(lost))
    with pytest.raises(StoreBusyError, match=r"removing.lease was lost \(not renewed for 200 s\)"):
        found.remove()
    assert halted == [store.store_id], "its receipts, and nothing after them"
    assert f"bucket/lab/features/{store.store_id}/store.json" in machines.server.objects


def test_files_that_a_run_uploads_right_now_are_no_leftovers(machines: Machines) -> None:
    machines.build()
    ArtifactStore(machines.new()).remove(UNUSED.ref)
    key = f"bucket/lab/artifacts/{UNUSED.ref}/numbers.bin"
    machines.server.store(key, b"so far")
    home = machines.new()
    assert collect(home, []).leftovers == (), "of a copy, for example, which no run records"
    machines.server.times[key] = time.time() - STALE_S - 60
    assert [str(ref) for ref in collect(machines.new(), []).leftovers] == [str(UNUSED.ref)]
    begun(machines.new(), "mine", [str(UNUSED.ref)])
    home = machines.new()
    assert [s.store_id for s in collect(home, []).stores] == [IDENTITY.store_id]
    assert collect(home, []).refs == collect(home, []).leftovers == ()


def test_a_run_of_another_machine_waits_for_gc_and_sees_what_is_left(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("permafrost.storage.gate.LOOK_S", 0.02)
    machines.build()
    here, there = machines.new(), machines.new()
    happened: list[str] = []

    def run() -> None:
        begun(there, "mine", [str(UNUSED.ref)])
        happened.append("recorded")
        pass_gate(there)
        happened.append(f"looks: {ArtifactStore(there).is_done(UNUSED.ref)}")

    thread = threading.Thread(target=run)
    with removing(here):
        thread.start()
        while not happened:
            time.sleep(0.01)
        time.sleep(0.3)  # time to do it wrong
        ArtifactStore(here).remove(UNUSED.ref)
        happened.append("removed")
    thread.join()
    assert happened == ["recorded", "removed", "looks: False"]
    # Of the home as it was when it was opened, before the run began.
    assert str(UNUSED.ref) not in collect(here, []).names


def test_messages_name_the_object_store_and_no_folder_of_this_machine(machines: Machines) -> None:
    home = machines.new()
    machines.server.store("bucket/lab/runs/mine.json", b"{")
    damaged = machines.new()
    with pytest.raises(CorruptDataError, match=f"^{URL}/runs/mine.json is not valid JSON"):
        collect(damaged, [])
    artifacts = ArtifactStore(home)
    asked = {
        "no experiment has finished": lambda: collect(home, []),
        "no artifact begins with": lambda: artifacts.find("fit/0123"),
        "is neither a file nor": lambda: read_side("missing", home),
        "the adapted backbone": lambda: backbone_place(home, f"adapt/{'0' * 32}"),
    }
    for says, ask in asked.items():
        with pytest.raises((InputError, NotFoundError), match=says) as refused:
            ask()
        assert URL in str(refused.value)
        assert str(home) not in str(refused.value)
