"""The write lease of a store on an object store: who holds it, how long, and what the loser may not do."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from permafrost.storage import lease
from permafrost.storage.drafts import owner
from permafrost.storage.errors import StoreBusyError
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.writers import writer_of
from permafrost.storage.features.writing import writing
from tests.storage.machines import filled, keys, machine
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import draft_of


def lease_of(store: FeatureStore) -> str:
    return f"bucket/lab/features/{store.store_id}/writer.lease"


def put_lease(server: ObjectServer, store: FeatureStore, **holder: object) -> str:
    key = lease_of(store)
    server.store(key, json.dumps({"renewed": "long ago", **holder}).encode())
    return key


def ended_holder() -> dict[str, object]:
    """What a process of this machine that has ended wrote into its lease."""
    code = "from permafrost.storage.drafts import owner; print(owner())"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    process = said.stdout.strip()
    return {"pid": int(process.split(".")[1]), "host": socket.gethostname(), "process": process}


def test_two_writers_on_two_machines_are_refused(server: ObjectServer, tmp_path: Path) -> None:
    small = filled(tmp_path)
    (other,) = all_stores(machine(tmp_path, "second"))
    with (
        writing(small.store),
        pytest.raises(StoreBusyError, match="being written by process"),
        writing(other),
    ):
        pass
    with writing(other):
        pass
    assert not [k for k in keys(server) if k.endswith("writer.lease")]


def test_who_writes_is_known_without_taking_the_lease(server: ObjectServer, tmp_path: Path) -> None:
    small = filled(tmp_path)
    (other,) = all_stores(machine(tmp_path, "second"))
    assert writer_of(small.store) is None
    here = f"process {os.getpid()} on {socket.gethostname()}"
    with writing(small.store) as writer:
        before = server.objects[lease_of(small.store)]
        assert (writer_of(small.store) or "").startswith(f"{here}, since ")
        assert writer_of(other) == here
        assert server.objects[lease_of(small.store)] == before
        writer.require_lease()
    assert writer_of(small.store) is writer_of(other) is None
    put_lease(server, small.store, **ended_holder())
    assert writer_of(other) is None, "it has ended"
    key = put_lease(server, small.store, pid=7, host="elsewhere")
    assert writer_of(other) == "process 7 on elsewhere"
    server.times[key] = time.time() - lease.TTL_S - 1
    assert writer_of(other) is None, "it has expired"


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_over(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    put_lease(server, small.store, **ended_holder())
    with writing(small.store):
        pass


def test_a_process_of_another_machine_of_the_same_name_is_not_held_for_dead(
    server: ObjectServer, tmp_path: Path
) -> None:
    """Clones of one image, and containers in the network of their host, have one name."""
    small = filled(tmp_path)
    holder = ended_holder()
    _, pid, started = str(holder["process"]).split(".")
    for process in (f"00000000.{pid}.{started}", "", "1", 5):
        put_lease(server, small.store, **{**holder, "process": process})
        with pytest.raises(StoreBusyError, match="being written by process"), writing(small.store):
            pass


def test_a_lease_of_another_machine_holds_until_it_is_old(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    key = put_lease(server, small.store, pid=1, host="another")
    with pytest.raises(StoreBusyError, match="process 1 on another"), writing(small.store):
        pass
    server.times[key] = time.time() - lease.TTL_S - 5
    with writing(small.store):
        assert json.loads(server.objects[key])["pid"] == os.getpid()
    assert key not in server.objects


@pytest.mark.parametrize("ahead_s", [-86400.0, 86400.0])
def test_a_lease_has_its_age_by_the_clock_of_the_object_store(
    server: ObjectServer, tmp_path: Path, ahead_s: float
) -> None:
    """With a clock here that is a day ahead a living one was taken over, with one behind a dead one held."""
    small = filled(tmp_path)
    server.ahead_s = ahead_s
    key = put_lease(server, small.store, pid=1, host="another")
    with pytest.raises(StoreBusyError, match=r"renewed \d{1,3} s ago"), writing(small.store):
        pass
    server.times[key] = time.time() + ahead_s - lease.TTL_S - 5
    with writing(small.store):
        assert json.loads(server.objects[key])["pid"] == os.getpid()
    assert not [name for name in server.objects if "writer.lease" in name]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"pid": "x"}', b'{"pid": 1e999, "host": "x"}', b"\xff\x00"],
)
def test_a_damaged_lease_runs_out_like_any_other(
    server: ObjectServer, tmp_path: Path, content: bytes
) -> None:
    small = filled(tmp_path)
    key = put_lease(server, small.store, pid=1, host="another")
    server.objects[key] = content
    with pytest.raises(StoreBusyError, match="an unknown machine"), writing(small.store):
        pass
    server.times[key] = time.time() - lease.TTL_S - 5
    with writing(small.store):
        assert json.loads(server.objects[key])["pid"] == os.getpid()


def test_a_holder_whose_number_is_damaged_counts_as_alive(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    place = owner().partition(".")[0]
    put_lease(
        server, small.store, pid=2**80, host=socket.gethostname(), process=f"{place}.{2**80}.1"
    )
    with pytest.raises(StoreBusyError, match=f"process {2**80} on "), writing(small.store):
        pass


def test_a_writer_that_lost_its_lease_commits_nothing_more(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEWAL_S", 0.05)
    small = filled(tmp_path)
    n_before = len([k for k in keys(server) if "/segments/" in k])
    with writing(small.store) as writer:
        key = put_lease(server, small.store, pid=1, host="another")
        deadline = time.monotonic() + 200
        while writer._lease is not None and writer._lease._lost is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        table = small.store.segment(0).table
        with pytest.raises(StoreBusyError, match="lost"):
            writer.add_segment(table, small.store.n_slots())
        sealed = draft_of(writer, 0, [], {}).seal()
        with pytest.raises(StoreBusyError, match="lost"):
            writer.commit(sealed)
    assert len([k for k in keys(server) if "/segments/" in k]) == n_before
    assert key in server.objects, "the other's lease is not ours to delete"


def test_a_writer_that_could_not_renew_in_time_commits_nothing_more(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when every answer is waited for, or the process is halted: nothing has told it of a loss."""
    small = filled(tmp_path)
    clock = [0.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    with writing(small.store) as writer:
        sealed = draft_of(writer, 0, [], {}).seal()
        clock[0] = lease.TTL_S - lease.LAST_S - 1
        writer.require_lease()
        clock[0] = lease.TTL_S - lease.LAST_S + 1
        with pytest.raises(StoreBusyError, match=r"was lost \(not renewed for 151 s\)"):
            writer.commit(sealed)
    assert [k for k in keys(server) if k.endswith("writer.lease")], "another one's by now"
