"""A home on an object store that others write to while its index is pulled: what is here is whole."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.storage import replica
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import SilentProgress
from tests.storage.machines import filled, machine
from tests.storage.object_server import ObjectServer


def test_a_store_that_is_removed_and_made_again_meanwhile_is_whole_here(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled(tmp_path)
    second = machine(tmp_path, "second")
    before = dict(server.objects)
    server.objects.clear()
    asked, exists = list[str](), replica.Replica.exists

    def made_again_after(self: replica.Replica, path: Path) -> bool:
        there = exists(self, path)
        asked.append(self.key_of(path))
        server.objects.update(before)  # after the first answer
        return there

    monkeypatch.setattr(replica.Replica, "exists", made_again_after)
    machine(tmp_path, "second")
    assert "/receipts/" in asked[0], "a receipt that goes last would stay behind without its table"
    (store,) = all_stores(second)
    assert store.lost_tables() == []
    assert small.store.segments() == store.segments()


def test_a_store_made_again_between_two_looks_is_not_called_damaged(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled(tmp_path)
    second = machine(tmp_path, "second")
    before = dict(server.objects)
    server.objects.clear()
    exists, asked = replica.Replica.exists, list[Path]()

    def made_again_after(self: replica.Replica, path: Path) -> bool:
        there = exists(self, path)
        asked.append(path)
        # Its record was gone and its copy is there, or the other way round.
        if path.name == "store.json":
            server.objects.update(before)
        return there

    monkeypatch.setattr(replica.Replica, "exists", made_again_after)
    machine(tmp_path, "second")
    assert any(path.name == "store.json" for path in asked)
    (store,) = all_stores(second)
    assert store.segments() == small.store.segments()
    assert verify(store, SilentProgress()) == []


def test_what_is_removed_while_it_is_pulled_is_not_half_here(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    second = machine(tmp_path, "second")
    table = next((second / "features").rglob("segments/000000.parquet"))
    table.unlink()  # so that it is fetched again, and receipts are not
    download = replica.Replica.download

    def removed_before(self: replica.Replica, path: Path, *more: Any) -> str:
        server.objects.clear()
        return download(self, path, *more)

    monkeypatch.setattr(replica.Replica, "download", removed_before)
    machine(tmp_path, "second")
    assert not list((second / "features").rglob("receipts/**/*.json"))


def test_a_home_that_is_opened_leaves_alone_what_another_process_is_publishing(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = machine(tmp_path, "first")
    put, found = replica.Replica.put, list[set[str]]()

    def opened_meanwhile(self: replica.Replica, source: Path, target: Path) -> str:
        machine(tmp_path, "first")
        found.append({path.name for path in source.parent.iterdir()})
        return put(self, source, target)

    monkeypatch.setattr(replica.Replica, "put", opened_meanwhile)
    artifacts, spec = ArtifactStore(home), ArtifactSpec(stage="fit", config={"lr": 0.1})
    with artifacts.publishing(spec, {}) as draft:
        for name in ("one", "two"):
            (draft.folder / name).write_bytes(b"x")
    assert found == [{"one", "two", "artifact.json"}] * 3
    assert artifacts.problems(spec.ref) == []
