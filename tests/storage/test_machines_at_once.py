"""What two machines do at one home on an object store at the same time, and what one goes on with that was
halted."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from permafrost.storage import downloads, lease, uploads
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.errors import CorruptDataError, StoreBusyError
from permafrost.storage.features import verification
from permafrost.storage.features.dropping import drop_arrays
from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.gate import removing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import Replica, replica_of
from tests.storage.machines import filled, keys, machine
from tests.storage.object_server import Fault, ObjectServer
from tests.storage.small_store import SmallStore

SPEC = ArtifactSpec(stage="fit", config={"value": 1})


def publish(home: Path, of: str) -> None:
    with ArtifactStore(home).publishing(SPEC, {}) as draft:
        for name in ("a.bin", "b.bin"):
            (draft.folder / name).write_text(f"{name} of {of}")


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def test_a_damaged_index_file_of_this_machine_is_no_damage_of_the_home(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    home = small.store.root.parents[1]
    publish(home, "one")
    artifacts = ArtifactStore(home)
    damage(artifacts.folder(SPEC.ref) / "artifact.json")
    damage(artifacts.folder(SPEC.ref) / "a.bin")
    damage(small.store.root / "receipts" / "000000" / "hidden" / "1.json")
    assert artifacts.problems(SPEC.ref) == []
    assert (artifacts.open(SPEC.ref) / "a.bin").read_text() == "a.bin of one"
    assert verify(small.store, SilentProgress()) == []
    # What is damaged there is damaged, by the name that it has there.
    key = f"bucket/lab/artifacts/{SPEC.ref}/artifact.json"
    server.store(key, server.objects[key][:20])
    (problem,) = artifacts.problems(SPEC.ref)
    assert problem.startswith(f"s3://bucket/lab/artifacts/{SPEC.ref}/artifact.json is damaged")


def test_files_that_are_verified_are_there_for_others_meanwhile(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = machine(tmp_path, "first")
    publish(home, "one")
    artifacts, real, fetched = ArtifactStore(home), Replica.download, list[str]()
    files = {p.name: artifacts.folder(SPEC.ref) / p for p in artifacts.folder(SPEC.ref).iterdir()}

    def looked(self: Replica, path: Path, target: Path) -> str:
        assert all(file.exists() for file in files.values())
        fetched.append(path.name)
        return real(self, path, target)

    monkeypatch.setattr(Replica, "download", looked)
    assert artifacts.problems(SPEC.ref) == []
    assert sorted(fetched) == sorted(files)
    monkeypatch.undo()
    # A file that is lost there is lost, whatever is here.
    del server.objects[f"bucket/lab/artifacts/{SPEC.ref}/b.bin"]
    assert artifacts.problems(SPEC.ref)
    with pytest.raises(CorruptDataError, match=r"b\.bin"):
        artifacts.open(SPEC.ref)


def test_an_artifact_that_two_machines_publish_at_once_is_one_of_theirs(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LOOK_S", 0.02)
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    other = threading.Thread(target=publish, args=(second, "two"))

    def begins(method: str, key: str) -> Fault | None:
        if method == "PUT" and key.endswith("/b.bin") and not other.ident:
            other.start()
            # Until it has met the first one's lease, and time to do it wrong.
            while not any(name.startswith("bucket/lab/artifacts") for name in waited_at()):
                time.sleep(0.01)
            time.sleep(0.2)
        return None

    def waited_at() -> list[str]:
        return [
            k
            for k, n in server.requests.items()
            if k.endswith(".lease") and n > 1
            for k in (k.split()[-1],)
        ]

    server.fault = begins
    publish(first, "one")
    other.join()
    for home in (first, second, machine(tmp_path, "third")):
        artifacts = ArtifactStore(home)
        assert artifacts.problems(SPEC.ref) == []
        assert (artifacts.open(SPEC.ref) / "a.bin").read_text() == "a.bin of one"
    assert not [key for key in keys(server) if ".lease" in key]


@pytest.mark.parametrize("piece_bytes", [8, 1 << 20], ids=["pieces", "whole"])
def test_a_file_that_is_replaced_while_it_is_fetched_is_one_of_the_two(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    home = machine(tmp_path, "first")
    monkeypatch.setattr(downloads, "PIECE_BYTES", piece_bytes)
    path, asked = home / "runs" / "x.json", list[str]()
    key = "bucket/lab/runs/x.json"
    server.store(key, b"the first one, short")

    def replaced(method: str, name: str) -> Fault | None:
        if name == key:
            asked.append(method)
            if len(asked) == 2:
                server.store(key, b"the second one, which is longer")
        return None

    server.fault = replaced
    of_path = replica_of(path)
    assert of_path is not None
    of_path.fetch(path)
    first = path.read_bytes()
    assert first in (b"the first one, short", b"the second one, which is longer")
    assert (len(asked) == 1) == (piece_bytes > 100)
    of_path.pull(home, SilentProgress())
    assert path.read_bytes() == server.objects[key]


def test_what_another_machine_writes_meanwhile_is_no_damage(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled(tmp_path)
    other, real = all_stores(machine(tmp_path, "second"))[0], verification.table_problem
    name = small.store.shard_path(1, "span").relative_to(small.store.root).as_posix()
    key = f"bucket/lab/features/{small.store.store_id}/{name}"
    server.store(key, server.objects[key][:-1] + b"?")

    def meanwhile(store: FeatureStore, number: int) -> str | None:
        monkeypatch.setattr(verification, "table_problem", real)
        with writing(other) as writer:
            drop_arrays(writer, ["hidden/1"])
        SmallStore(other, small.texts, small.rows).add(["one more text"], [7], seed=5)
        # Metadata arrives here before the receipts that it tells of.
        replica = replica_of(store.root)
        assert replica is not None
        replica.fetch(store.zarr_path / "zarr.json")
        return real(store, number)

    monkeypatch.setattr(verification, "table_problem", meanwhile)
    assert [(d.segment, d.array) for d in verify(small.store, SilentProgress())] == [(1, "span")]
    assert verification.table_problem is real
    last = small.store.n_slots() - 1
    assert "hidden/1" in small.store.committed(last)
    assert "hidden/1" not in small.store.committed(0)


class Halted:
    """A process that is halted for longer than a lease lasts at a chosen request, as a laptop that sleeps."""

    def __init__(
        self, server: ObjectServer, patch: pytest.MonkeyPatch, method: str, key: str
    ) -> None:
        real = lease._now
        self._at, self._late = (method, key), 0.0
        self.happened = False
        patch.setattr(lease, "_now", lambda: real() + self._late)
        server.fault = self._fault

    def _fault(self, method: str, key: str) -> Fault | None:
        if method == self._at[0] and self._at[1] in key:
            self.happened, self._late = True, lease.TTL_S
        return None


def test_a_writer_that_was_halted_while_it_commits_writes_no_receipt(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled(tmp_path)
    with writing(small.store) as writer:
        writer.declare(("hidden/2", "values/1"))
        halted = Halted(server, monkeypatch, "PUT", "/c/")
        server.log.clear()
        with pytest.raises(StoreBusyError, match="was lost"):
            small.fill(writer, 0, ["hidden/2", "values/1"], np.random.default_rng(1))
        assert halted.happened
        shards = [line for line in server.log if "/c/" in line]
        assert len(shards) == 1, "that of the request at which it was halted"
        assert not [line for line in server.log if "/receipts/" in line]
        assert small.store.committed(0).isdisjoint(("hidden/2", "values/1"))


@pytest.mark.parametrize("name", ["hidden/2/zarr.json", "features.zarr/zarr.json"])
def test_a_writer_that_was_halted_while_it_declares_writes_no_more_metadata(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small = filled(tmp_path)
    with writing(small.store) as writer:
        halted = Halted(server, monkeypatch, "PUT", name)
        server.log.clear()
        with pytest.raises(StoreBusyError, match="was lost"):
            writer.declare(("hidden/2", "values/1"))
        assert halted.happened
        assert server.log[-1].endswith(name), "that of the request at which it was halted"
        server.log.clear()
        with pytest.raises(StoreBusyError, match="was lost"):
            writer.declare(("hidden/2", "values/1"))
        with pytest.raises(StoreBusyError, match="was lost"):
            write_projection(
                small.store, 1, np.eye(8, dtype=np.float32), None, writer.require_lease
            )
    assert not [line for line in server.log if line.endswith("zarr.json")]


def test_who_removes_and_was_halted_removes_nothing_more(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = machine(tmp_path, "first")
    publish(home, "one")
    artifacts = ArtifactStore(home)
    with removing(home) as require_closed:
        require_closed()
        halted = Halted(server, monkeypatch, "POST", "")  # how several are deleted, and one
        with pytest.raises(
            StoreBusyError,
            match=r"s3://bucket/lab/runs/removing.lease was lost .*what is gone is gone",
        ):
            artifacts.unpublish(SPEC.ref, require_closed)
        assert halted.happened
    left = [key for key in keys(server) if key.startswith("artifacts/")]
    assert sorted(key.rpartition("/")[2] for key in left) == ["a.bin", "b.bin"]


def test_the_gate_that_another_machine_holds_is_waited_for_and_named(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("permafrost.storage.gate.PATIENCE_S", 0.0)
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    with (
        removing(first),
        pytest.raises(
            StoreBusyError, match=r"process \d+ on .* is removing something of s3://bucket/lab;"
        ),
        removing(second),
    ):
        pass
    monkeypatch.setattr("permafrost.storage.gate.PATIENCE_S", 30.0)
    monkeypatch.setattr("permafrost.storage.gate.LOOK_S", 0.02)
    order = list[str]()

    def waits() -> None:
        with removing(second):
            order.append("second")

    thread = threading.Thread(target=waits)
    with removing(first):
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
