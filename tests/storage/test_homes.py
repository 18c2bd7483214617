"""The contract of homes, for a folder and for an object store; and a network that fails."""

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from permafrost.storage import lease
from permafrost.storage.errors import ObjectStoreError, PermafrostError
from permafrost.storage.features.parts import part_of
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.transfer import transfer
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import attach
from tests.storage import object_server as server_module
from tests.storage.home_contract import HomeContract, Place, assert_reads
from tests.storage.object_server import Fault, ObjectServer
from tests.storage.small_store import SmallStore, filled_store

URL = "s3://bucket/lab"


class Folder(Place):
    def __init__(self, home: Path) -> None:
        self._home = home

    def seen_from(self, machine: str) -> Path:
        return self._home

    def read(self, key: str) -> bytes:
        return (self._home / key).read_bytes()

    def write(self, key: str, content: bytes) -> None:
        (self._home / key).write_bytes(content)


class Bucket(Place):
    def __init__(self, server: ObjectServer, tmp_path: Path) -> None:
        self._server, self._tmp_path = server, tmp_path

    def seen_from(self, machine: str) -> Path:
        return attach(URL, self._tmp_path / machine, SilentProgress())

    def read(self, key: str) -> bytes:
        return self._server.objects[f"bucket/lab/{key}"]

    def write(self, key: str, content: bytes) -> None:
        self._server.store(f"bucket/lab/{key}", content)


class TestFolder(HomeContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:  # type: ignore[override]
        return Folder(tmp_path / "home")


class TestObjectStore(HomeContract):
    @pytest.fixture
    def place(self, server: ObjectServer, tmp_path: Path) -> Place:  # type: ignore[override]
        return Bucket(server, tmp_path)


Named = Callable[[str, str], bool]
REQUESTS: dict[str, Named] = {
    "list": lambda method, key: method == "GET" and key.count("/") < 2,
    "get": lambda method, key: method == "GET" and key.count("/") > 2,
    "get a piece of a shard": lambda method, key: method == "GET" and "hidden/1/c/0" in key,
    "put shard": lambda method, key: method == "PUT" and "hidden/1/c/0" in key,
    "put table": lambda method, key: method == "PUT" and "lab/" in key and "segments/" in key,
    "put receipt": lambda method, key: method == "PUT" and "receipts" in key,
    "put lease": lambda method, key: method == "PUT" and "writer.lease" in key,
    "delete": lambda method, key: method in ("DELETE", "POST"),
}
"""Reads and writes; those of tables and of the lease are conditional."""


class TheFirst:
    """One fault, of the first request of a kind."""

    def __init__(self, named: Named, fault: Fault) -> None:
        self._named, self.happened = named, False
        self._fault: Fault = fault

    def __call__(self, method: str, key: str) -> Fault | None:
        if self.happened or not self._named(method, key):
            return None
        self.happened = True
        return self._fault


SOON = {
    ("torn", "list"),
    ("answer lost", "put table"),
    ("answer lost", "put lease"),
    ("twice", "put lease"),
}
"""What the client alone does not get over."""
FAULTS: tuple[Fault, ...] = ("500", "503", "torn", "request torn", "answer lost", "twice")
"""A request fails, its answer or it itself arrives in part, is carried out unnoticed, arrives twice; that it
times out has a test of its own."""
FAILING = [
    pytest.param(fault, request, marks=() if (fault, request) in SOON else pytest.mark.deep)
    for fault in FAULTS
    for request in REQUESTS
]


@pytest.mark.parametrize(("fault", "request_"), FAILING)
def test_a_request_that_fails_once_fails_nothing(
    server: ObjectServer, tmp_path: Path, request_: str, fault: Fault
) -> None:
    server.fault = once = TheFirst(REQUESTS[request_], fault)
    small = filled_store(attach(URL, tmp_path / "a", SilentProgress()), 2)
    (store,) = all_stores(attach(URL, tmp_path / "b", SilentProgress()))
    assert_reads(store, small)
    assert once.happened
    server.fault = lambda method, key: None
    assert verify(store, SilentProgress()) == []
    assert not [k for k in server.objects if "lease" in k]


@pytest.mark.deep
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_without_an_answer_is_tried_again_or_told(
    server: ObjectServer, tmp_path: Path, request_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_TIMEOUT", "1s")
    monkeypatch.setattr(server_module, "STALL_S", 2.0)
    whole = filled_store(tmp_path / "whole", 2)
    everything = part_of(whole.store, ["*"], None)
    server.fault = once = TheFirst(REQUESTS[request_], "stalled")
    # Conditional ones are not repeated, as the first may have been carried out.
    is_conditional = request_ in ("put table", "put lease")
    with (
        pytest.raises(ObjectStoreError, match=r"cannot write s3://bucket/lab")
        if is_conditional
        else contextlib.nullcontext()
    ):
        transfer(everything, attach(URL, tmp_path / "a", SilentProgress()), SilentProgress())
    if "piece" in request_:
        assert_reads(all_stores(attach(URL, tmp_path / "a", SilentProgress()))[0], whole)
    server.fault = lambda method, key: None
    for key in [k for k in server.objects if k.endswith("writer.lease")]:
        del server.objects[key]  # as it would run out
    home = attach(URL, tmp_path / "b", SilentProgress())
    transfer(everything, home, SilentProgress())
    (store,) = all_stores(home)
    assert_reads(store, whole)
    assert once.happened
    assert verify(store, SilentProgress()) == []


def test_a_lease_whose_renewal_lost_its_answer_is_still_held(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled_store(attach(URL, tmp_path / "a", SilentProgress()), 2)
    monkeypatch.setattr(lease, "RENEWAL_S", 0.05)
    renewals = list[str]()

    def fault(method: str, key: str) -> Fault | None:
        if method != "PUT" or "writer.lease" not in key:
            return None
        renewals.append(key)
        return "answer lost" if len(renewals) % 2 else None

    with writing(small.store) as writer:
        server.fault = fault
        while len(renewals) < 6:
            assert writer._lease is not None
            writer._lease.require()
        (held,) = [json.loads(v) for k, v in server.objects.items() if "writer.lease" in k]
        assert writer._lease is not None
        assert held["id"] == writer._lease._id
    assert not [k for k in server.objects if "writer.lease" in k]


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_a_network_that_fails_often_gives_no_wrong_number(
    server: ObjectServer, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    whole = filled_store(tmp_path / "whole", 12)
    everything = part_of(whole.store, ["*"], None)
    server.fault = lambda method, key: rng.choice(FAULTS) if rng.random() < 0.1 else None
    n_failed = 0
    for attempt in range(40):
        try:
            home = attach(URL, tmp_path / f"machine {attempt}", SilentProgress())
            transfer(everything, home, SilentProgress())
            break
        except PermafrostError:
            n_failed += 1
    server.fault = lambda method, key: None
    (store,) = all_stores(attach(URL, tmp_path / "reader", SilentProgress()))
    assert n_failed < 40
    assert [d for d in verify(store, SilentProgress()) if d.segment is not None] == []
    assert_reads(store, SmallStore(store, whole.texts, whole.rows))
