"""Homes on an object store, over the real client and a real (loopback) server."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from obstore.store import from_url
from zarr.storage import ObjectStore

from permafrost.storage import replica
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.errors import (
    CorruptDataError,
    DiskFullError,
    InputError,
    ObjectStoreError,
    StoreBusyError,
)
from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.receipts import revoke_receipt
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.verification import discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from permafrost.storage.replica import detach
from tests.storage.machines import URL, filled, keys, machine
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import (
    ARRAYS,
    IDENTITY,
    SIZES,
    SmallStore,
    filled_store,
)


def assert_reads(store: FeatureStore, small: SmallStore, array: str = "hidden/1") -> None:
    reader = open_reader(
        store, array, small.digests, budget_bytes=1 << 30, precision="stored", tokens="all"
    )
    for texts, rows in reader.in_order(5):
        for i, text in enumerate(texts.tolist()):
            found = rows.data[rows.offsets[i] : rows.offsets[i + 1]]
            assert np.array_equal(found, small.expected(array, small.texts[text]))


def test_the_object_store_holds_what_a_local_home_holds(
    server: ObjectServer, tmp_path: Path
) -> None:
    filled(tmp_path)
    filled_store(tmp_path / "plain", 12)

    def names(folder: Path) -> set[str]:
        return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}

    plain = {n for n in names(tmp_path / "plain") if not n.endswith("writer.lock")}
    assert keys(server) == plain
    changing = ("store.json", "/receipts/")  # both hold times
    for key in plain:
        if not any(part in key for part in changing):
            assert server.objects[f"bucket/lab/{key}"] == (tmp_path / "plain" / key).read_bytes()


def test_a_receipt_appears_after_its_shard_and_by_one_put(
    server: ObjectServer, tmp_path: Path
) -> None:
    filled(tmp_path)
    puts = [line.removeprefix("PUT bucket/lab/") for line in server.log if line.startswith("PUT")]
    receipts = [k for k in puts if "/receipts/" in k]
    assert receipts
    for key in receipts:
        shard = json.loads(server.objects[f"bucket/lab/{key}"])["shard"]
        store = "/".join(key.split("/")[:2])
        assert puts.index(f"{store}/{shard}") < puts.index(key)
        assert server.requests[f"PUT bucket/lab/{key}"] == 1


def test_another_machine_reads_everything_and_fetches_only_what_it_reads(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    (store,) = all_stores(machine(tmp_path, "second"))
    assert not [k for k in server.requests if k.startswith("GET") and "/c/" in k]
    assert_reads(store, small)
    read = {k for k in server.requests if k.startswith("GET") and "/c/" in k}
    assert read
    assert all("hidden/1" in k for k in read)
    assert not verify(store, SilentProgress())


def test_an_index_that_did_not_change_is_not_fetched_again(
    server: ObjectServer, tmp_path: Path
) -> None:
    filled(tmp_path)
    detach(machine(tmp_path, "second"))
    before = {k: n for k, n in server.requests.items() if k.startswith("GET bucket/lab/")}
    machine(tmp_path, "second")
    after = {k: n for k, n in server.requests.items() if k.startswith("GET bucket/lab/")}
    assert before
    assert after == before


def test_the_writer_itself_fetches_nothing_back(server: ObjectServer, tmp_path: Path) -> None:
    small = filled(tmp_path)
    detach(small.store.root.parents[1])
    server.requests.clear()
    machine(tmp_path, "first")
    again = [k for k in server.requests if k.startswith("GET bucket/lab/")]
    assert not again


def test_a_full_disk_is_named_where_something_is_fetched(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled(tmp_path)
    there = machine(tmp_path, "second")

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(replica.Replica, "download", full)
        with pytest.raises(DiskFullError, match=r"no room to write .*: No space left") as told:
            assert_reads(all_stores(there)[0], small)
    assert f"this machine's copy of {URL} elsewhere by the variable PERMAFROST_CACHE" in str(
        told.value
    )
    # What is written there is a draft here first.
    with pytest.raises(DiskFullError, match="PERMAFROST_CACHE"), disk_errors_named(there / "a/b"):
        full()
    with (
        pytest.raises(DiskFullError, match="choose another --home"),
        disk_errors_named(tmp_path / "plain/b"),
    ):
        full()
    assert not list(there.glob(".draft-*"))
    assert_reads(all_stores(there)[0], small)


def test_a_segment_number_is_given_once_even_without_a_lease(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    number = small.store.n_slots()
    taken = f"bucket/lab/features/{small.store.store_id}/segments/{number:06d}.parquet"
    with writing(small.store) as writer:
        server.store(taken, b"of another machine")
        with pytest.raises(StoreBusyError, match=f"segment {number}"):
            writer.add_segment(small.store.segment(0).table, number)
    assert server.objects[taken] == b"of another machine"


def test_a_failed_upload_commits_nothing_and_the_rerun_does(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    server.refuse = lambda method, key: method == "PUT" and "attention_rows/2/c" in key
    with writing(small.store) as writer:
        rng = np.random.default_rng(1)
        writer.declare(["attention_rows/2"])
        with pytest.raises(ObjectStoreError, match=r"cannot write s3://bucket/lab/.*503"):
            small.fill(writer, 0, ["attention_rows/2"], rng)
    assert "attention_rows/2" not in small.store.committed(0)
    assert not [k for k in keys(server) if "receipts/000000/attention_rows/2" in k]
    server.refuse = lambda method, key: False
    with writing(small.store) as writer:
        small.fill(writer, 0, ["attention_rows/2"], np.random.default_rng(1))
    assert not verify(small.store, SilentProgress())


@pytest.mark.deep
def test_damage_in_the_object_store_is_found_although_a_good_copy_is_here(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    store = small.store
    shard = f"bucket/lab/features/{store.store_id}/features.zarr/hidden/1/c/0/0"
    whole = server.objects[shard]
    server.store(shard, whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    (damage,) = verify(store, SilentProgress())
    assert (damage.segment, damage.array) == (0, "hidden/1")
    with writing(store) as writer:
        assert discard(writer, [damage]) == {0: ("hidden/1",)}
        assert shard not in server.objects
        small.fill(writer, 0, ["hidden/1"], np.random.default_rng(0))
    assert not verify(store, SilentProgress())
    assert_reads(store, small)


def test_a_repaired_cell_replaces_the_copies_of_other_machines(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    (other,) = all_stores(machine(tmp_path, "second"))
    assert_reads(other, small)
    revoke_receipt(small.store.root, 0, "hidden/1")
    for text in small.store.segment(0).table.column("text").to_pylist():
        del small.rows["hidden/1"][text]
    with writing(small.store) as writer:
        small.fill(writer, 0, ["hidden/1"], np.random.default_rng(99))
    (other,) = all_stores(machine(tmp_path, "second"))
    assert_reads(other, small)


def test_an_object_that_is_gone_is_an_error_that_names_it(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    (store,) = all_stores(machine(tmp_path, "second"))
    del server.objects[f"bucket/lab/features/{store.store_id}/features.zarr/hidden/1/c/0/0"]
    with pytest.raises(CorruptDataError, match=r"s3://bucket/lab/.*hidden/1/c/0/0 is not there"):
        assert_reads(store, small)


def spec(value: int) -> ArtifactSpec:
    return ArtifactSpec(stage="fit", config={"value": value})


def publish(store: ArtifactStore, value: int, content: str) -> None:
    with store.publishing(spec(value), {}) as draft:
        (draft.folder / "deep").mkdir()
        (draft.folder / "deep" / "result.txt").write_text(content)


def test_artifacts_are_published_manifest_last_and_opened_elsewhere(
    server: ObjectServer, tmp_path: Path
) -> None:
    publish(ArtifactStore(machine(tmp_path, "first")), 1, "hello")
    folder = f"bucket/lab/artifacts/fit/{spec(1).ref.key}"
    lease = f"{folder}.lease"
    files = [f"PUT {folder}/deep/result.txt", f"PUT {folder}/artifact.json"]
    assert server.log == [f"PUT {lease}", *files, f"DELETE {lease}"]
    server.log.clear()
    second = ArtifactStore(machine(tmp_path, "second"))
    assert second.is_done(spec(1).ref)
    assert (second.open(spec(1).ref) / "deep" / "result.txt").read_text() == "hello"
    second.remove(spec(1).ref)
    assert not server.objects
    assert server.log[0] == f"DELETE {folder}/artifact.json"


def test_what_is_made_again_stays_where_uploads_are_refused(
    server: ObjectServer, tmp_path: Path
) -> None:
    """As `permafrost report` makes a report again; it was deleted there before the upload began."""
    store = ArtifactStore(machine(tmp_path, "first"))
    publish(store, 1, "old")
    before = dict(server.objects)

    def made_again() -> None:
        with store.publishing(spec(1), {}, again=True) as draft:
            (draft.folder / "result.txt").write_text("new")

    server.refuse = lambda method, key: method == "PUT"
    with pytest.raises(ObjectStoreError):
        made_again()
    assert server.objects == before
    assert (store.open(spec(1).ref) / "deep" / "result.txt").read_text() == "old"
    server.refuse = lambda method, key: False
    server.log.clear()
    made_again()
    folder = f"bucket/lab/artifacts/fit/{spec(1).ref.key}"
    assert server.log == [
        f"PUT {folder}.lease",
        f"PUT {folder}/result.txt",
        f"PUT {folder}/artifact.json",
        f"DELETE {folder}/deep/result.txt",
        f"DELETE {folder}.lease",
    ]
    for name in ("first", "second"):
        there = ArtifactStore(machine(tmp_path, name))
        assert (there.open(spec(1).ref) / "result.txt").read_text() == "new"
        assert there.problems(spec(1).ref) == []
    assert not (store.folder(spec(1).ref) / "deep").exists()


def test_what_was_removed_elsewhere_goes_here_too(server: ObjectServer, tmp_path: Path) -> None:
    first, second = (ArtifactStore(machine(tmp_path, n)) for n in ("first", "second"))
    publish(first, 1, "hello")
    machine(tmp_path, "second")
    second.open(spec(1).ref)
    first.remove(spec(1).ref)
    machine(tmp_path, "second")
    assert not second.is_done(spec(1).ref)


def test_a_lost_replica_costs_nothing(server: ObjectServer, tmp_path: Path) -> None:
    small = filled(tmp_path)
    detach(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    (store,) = all_stores(machine(tmp_path, "first"))
    assert_reads(store, small)


def test_a_store_created_on_two_machines_at_once_is_one_store(
    server: ObjectServer, tmp_path: Path
) -> None:
    homes = [machine(tmp_path, n) for n in ("first", "second")]
    first, second = (
        FeatureStore.create_or_open(h, IDENTITY, SIZES, {"source": f"seen from {h.name}"})
        for h in homes
    )
    assert first.record == second.record
    assert first.record.backbone == {"source": "seen from first"}


def test_a_store_that_does_not_answer_is_the_users_to_check(
    server: ObjectServer, tmp_path: Path
) -> None:
    server.refuse = lambda method, key: True
    with pytest.raises(InputError, match=r"cannot list s3://bucket/lab.*credentials"):
        machine(tmp_path, "first")


def test_any_zarr_reader_opens_the_features_in_the_object_store(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(tmp_path)
    url = f"{URL}/features/{small.store.store_id}/features.zarr"
    group = zarr.open_group(ObjectStore(from_url(url), read_only=True), mode="r")
    hidden = group["hidden/1"]
    assert isinstance(hidden, zarr.Array)
    where = small.store.locate(small.digests)
    for text, start, n in zip(
        small.texts, where.token_start.tolist(), where.n_tokens.tolist(), strict=True
    ):
        assert np.array_equal(hidden[start : start + n], small.expected("hidden/1", text))  # pyright: ignore[reportArgumentType]
    assert set(ARRAYS) <= {name for name, _ in group.members(max_depth=None)}


def test_damage_is_named_as_the_object_store_has_it(server: ObjectServer, tmp_path: Path) -> None:
    small = filled(tmp_path)
    write_projection(small.store, 1, np.eye(8, dtype=np.float32), None)
    features = f"features/{small.store.store_id}/features.zarr"
    server.objects[f"bucket/lab/{features}/projections/o_proj/1/c/0/0"] += b"x"
    (shard,) = [k for k in server.objects if k.endswith(f"{features}/hidden/1/c/0/0")]
    content = server.objects[shard]
    server.objects[shard] = bytes([content[0] ^ 1]) + content[1:]
    server.objects[f"bucket/lab/{features}/hidden/zarr.json"] = b"{}"
    server.objects[f"bucket/lab/features/{small.store.store_id}/copies/000000.parquet"] = b"PAR1"
    problems = [found.problem for found in verify(small.store, SilentProgress())]
    assert any(f"{URL}/{features}/hidden/zarr.json is not a Zarr group" in p for p in problems)
    assert any("000000.parquet is not a copy of" in p for p in problems)
    assert any(f"the shard {URL}/{features}/hidden/1/c/0/0 is damaged: " in p for p in problems)
    assert any(f"the projection {URL}/{features}/projections/o_proj/1 is" in p for p in problems)
    assert len(problems) == 4
    assert not any("permafrost verify" in p or str(tmp_path) in p for p in problems)


def test_a_removal_that_is_cut_short_leaves_nothing_here_that_is_not_there(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a kill, after the manifest went and before the other objects did."""
    store = ArtifactStore(machine(tmp_path, "first"))
    spec = ArtifactSpec(stage="fit", config={"lr": 1})
    with store.publishing(spec, {}) as draft:
        (draft.folder / "weights.bin").write_bytes(b"w")

    def killed(*_: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replica.Replica, "_list", killed)
        with pytest.raises(KeyboardInterrupt):
            store.remove(spec.ref)
    assert f"artifacts/{spec.ref}/artifact.json" not in keys(server)
    assert f"artifacts/{spec.ref}/weights.bin" in keys(server), "it was not cut short"
    assert ArtifactStore(machine(tmp_path, "first")).refs() == []
    with store.publishing(spec, {}) as draft:
        (draft.folder / "weights.bin").write_bytes(b"w")
    assert store.problems(spec.ref) == []
