"""A feature store copied between homes: folders, and object stores on either side."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from permafrost.storage.errors import (
    CorruptDataError,
    DiskFullError,
    InputError,
    NotFoundError,
    ObjectStoreError,
    StoreBusyError,
)
from permafrost.storage.features import transfer as transfer_module
from permafrost.storage.features.parts import part_of
from permafrost.storage.features.projections import read_projection, write_projection
from permafrost.storage.features.receipts import read_receipt, receipt_path
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.features.transfer import plan_transfer
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import attach
from permafrost.storage.sealed import read_sealed, sealed_bytes
from tests.storage.copied_stores import assert_reads, copy, there
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import ARRAYS, SmallStore, filled_store, flip, new_store, snapshot

FEW = 5
"""Texts, in three segments."""


def remote(tmp_path: Path, name: str) -> Path:
    return attach(f"s3://bucket/{name}", tmp_path / f"replica of {name}", SilentProgress())


@pytest.fixture(params=["folder > folder", "folder > s3", "s3 > folder", "s3 > s3"])
def pair(request: pytest.FixtureRequest, server: ObjectServer, tmp_path: Path) -> tuple[Path, Path]:
    """Where a store is, and where it is to go."""
    first, second = request.param.split(" > ")
    return (
        remote(tmp_path, "from") if first == "s3" else tmp_path / "from",
        remote(tmp_path, "to") if second == "s3" else tmp_path / "to",
    )


def test_a_store_is_copied_whole_and_reads_the_same(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    small = filled_store(source, FEW)
    before = snapshot(small.store.root)
    plan = copy(small, target)
    assert plan.n_cells == len(small.store.segments()) * (2 + len(ARRAYS))
    assert plan.n_lacking == plan.n_present == 0
    store = there(target)
    assert not verify(store, SilentProgress())
    assert_reads(store, small, small.texts, ARRAYS)
    mine = read_receipt(small.store.root, 0, "hidden/1")
    other = read_receipt(store.root, 0, "hidden/1")
    assert (other.seal, other.statistics) == (mine.seal, mine.statistics)
    assert other.provenance["library"] == "1.0"
    assert other.provenance["computed"] == mine.provenance["committed"]
    assert snapshot(small.store.root) == before


def test_what_is_there_is_not_copied_again(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    small = filled_store(source, FEW)
    first = copy(small, target)
    before = snapshot(there(target).root)
    again = copy(small, target)
    assert (again.n_cells, again.n_present) == (0, first.n_cells)
    assert snapshot(there(target).root) == before
    small.add(["one more text"], [7], seed=5)
    more = copy(small, target)
    assert (more.n_cells, len(more.segments)) == (2 + len(ARRAYS), 1)
    assert_reads(there(target), small, small.texts, ARRAYS)


def test_drafts_that_a_copy_left_go_with_the_next_one(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    copy(small, tmp_path / "to")
    root = there(tmp_path / "to").root
    code = (
        "from pathlib import Path; from permafrost.storage.drafts import draft_path; "
        "print(draft_path(Path('zarr.json')).name)"
    )
    dead = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    lock = root / "writer.lock"  # which says who has written last
    before = snapshot(root, besides=[lock])
    (root / "features.zarr" / dead).write_text("{")
    (root / dead / "hidden").mkdir(parents=True)
    assert not copy(small, tmp_path / "to").segments
    assert snapshot(root, besides=[lock]) == before
    assert not (root / dead).exists()


def test_some_arrays_and_later_the_others(pair: tuple[Path, Path]) -> None:
    source, target = pair
    small = filled_store(source, FEW)
    copy(small, target, ("hidden/*",))
    assert there(target).arrays() == ["hidden/1", "span", "token_ids"]
    rest = copy(small, target, ("attention_rows/1", "pooled/*"))
    assert {a for s in rest.segments for a in s.cells} == set(ARRAYS) - {"hidden/1"}
    assert_reads(there(target), small, small.texts, ARRAYS)
    assert not verify(there(target), SilentProgress())


@pytest.mark.parametrize("place", ["new", "home"])
def test_what_no_segment_of_the_part_has_is_lacking_wherever_it_is_to_go(
    tmp_path: Path, place: str
) -> None:
    small = filled_store(tmp_path / "from", FEW)
    for segment in small.store.segments()[:-1]:
        receipt_path(small.store.root, segment, "hidden/1").unlink()
    if place == "home":
        filled_store(tmp_path / "to", 1, dtype="float32")
    before = snapshot(tmp_path)
    plan = copy(small, tmp_path / "to", ("hidden/1",), small.digests[:1])
    assert (plan.n_cells, plan.n_lacking) == (0, 1)
    assert plan == plan_transfer(plan.part, tmp_path / "to")
    assert snapshot(tmp_path) == before


def test_a_part_has_whole_segments_under_numbers_of_its_own(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    last = small.store.segments()[-1]
    texts = small.store.segment(last).table.column("text").to_pylist()
    digest = small.store.segment(last).table.column("digest")[0].as_py()
    plan = copy(small, tmp_path / "to", digests=[digest, "0" * 64])
    assert (plan.n_texts, plan.part.n_unknown) == (len(texts), 1)
    store = there(tmp_path / "to")
    assert store.segments() == [0]
    assert store.segment(0).table.column("text").to_pylist() == texts
    assert store.segment(0).table.column("token_start")[0].as_py() == 0
    assert_reads(store, small, texts, ARRAYS)
    assert not verify(store, SilentProgress())
    hidden = zarr.open_array(store.zarr_path / "hidden/1", mode="r")
    expected = small.expected("hidden/1", texts[0])
    assert np.array_equal(hidden[: len(expected)], expected)  # type: ignore[arg-type]
    # The rest is put behind it, and the part is not copied twice.
    everything = copy(small, tmp_path / "to")
    assert len(everything.segments) == len(small.store.segments()) - 1
    assert_reads(store := there(tmp_path / "to"), small, small.texts, ARRAYS)
    assert not verify(store, SilentProgress())
    assert copy(small, tmp_path / "to").n_cells == 0


def test_projections_come_with_their_attention_rows(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    rng = np.random.default_rng(0)
    weight, bias = (rng.normal(size=s).astype(np.float32) for s in ((6, 8), (8,)))
    for block in (1, 2):
        write_projection(small.store, block, weight, bias)
    copy(small, tmp_path / "to", ("hidden/1",))
    assert plan_transfer(part_of(small.store, ("*",), None), tmp_path / "to").projections == (1,)
    copy(small, tmp_path / "to")
    found = read_projection(there(tmp_path / "to"), 1)
    assert np.array_equal(found[0], weight)
    assert np.array_equal(found[1], bias)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        read_projection(there(tmp_path / "to"), 2)


def test_receipts_are_last_and_each_object_is_put_once(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled_store(tmp_path / "from", FEW)
    copy(small, remote(tmp_path, "to"))
    puts = [line.removeprefix("PUT ") for line in server.log if line.startswith("PUT")]
    receipts = [k for k in puts if "/receipts/" in k]
    assert receipts
    for key in receipts:
        shard = json.loads(server.objects[key])["shard"]
        where = f"{key.partition('/receipts/')[0]}/{shard}"
        assert puts.index(where) < puts.index(key)
        assert server.requests[f"PUT {where}"] == 1
    # Nothing but the small files stays here.
    here = [p for p in (tmp_path / "replica of to").rglob("c/*/*") if "projections" not in p.parts]
    assert here == []


def test_what_was_spoilt_in_the_source_is_not_copied(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    shard = small.store.shard_path(1, "hidden/1")
    flip(shard, 40)
    with pytest.raises(CorruptDataError, match=r"hidden/1/c/1/0 did not arrive.*verify"):
        copy(small, tmp_path / "to")
    store = there(tmp_path / "to")
    assert "hidden/1" not in store.committed(1)
    assert not verify(store, SilentProgress())
    flip(shard, 40)
    rest = copy(small, tmp_path / "to")
    assert rest.n_present > 0
    assert_reads(there(tmp_path / "to"), small, small.texts, ARRAYS)


def test_what_is_spoilt_on_the_way_is_fetched_again(server: ObjectServer, tmp_path: Path) -> None:
    small = filled_store(home := remote(tmp_path, "from"), FEW)
    shard = small.store.shard_path(0, "hidden/1")
    flip(shard, 40)  # the copy here; the object is whole
    copy(small, tmp_path / "to")
    assert_reads(there(tmp_path / "to"), small, small.texts, ("hidden/1",))
    key = f"bucket/from/{shard.relative_to(home).as_posix()}"
    whole = server.objects[key]
    server.objects[key] = whole[:-10]
    shard.unlink()
    with pytest.raises(CorruptDataError, match=r"s3://bucket/from/.*did not arrive"):
        copy(small, tmp_path / "other")
    assert server.requests[f"GET {key}"] >= 2


@pytest.mark.parametrize("what", ["shard is gone", "shard is short", "receipt"])
def test_what_is_damaged_in_the_target_is_copied_again(tmp_path: Path, what: str) -> None:
    small = filled_store(tmp_path / "from", FEW)
    copy(small, tmp_path / "to")
    store = there(tmp_path / "to")
    path = store.shard_path(0, "hidden/1")
    match what:
        case "shard is gone":
            path.unlink()
        case "shard is short":
            os.truncate(path, path.stat().st_size - 1)
        case _:
            flip(receipt_path(store.root, 0, "hidden/1"), 60)
    again = copy(small, tmp_path / "to")
    assert [(s.target, [*s.cells]) for s in again.segments] == [(0, ["hidden/1"])]
    assert not verify(there(tmp_path / "to"), SilentProgress())
    assert_reads(there(tmp_path / "to"), small, small.texts, ("hidden/1",))


@pytest.mark.parametrize("lost", ["object", "object and copy here", "half of the object"])
def test_a_shard_that_an_object_store_lost_is_copied_again(
    server: ObjectServer, tmp_path: Path, lost: str
) -> None:
    small = filled_store(tmp_path / "from", FEW)
    copy(small, home := remote(tmp_path, "to"))
    shard = there(home).shard_path(0, "hidden/1")
    key = f"bucket/to/{shard.relative_to(home).as_posix()}"
    whole = server.objects.pop(key)
    if lost == "object":
        shard.write_bytes(whole)
    else:
        shard.unlink(missing_ok=True)
    if lost == "half of the object":
        server.objects[key] = whole[: len(whole) // 2]
    server.requests.clear()
    again = copy(small, home)
    assert [(s.target, [*s.cells]) for s in again.segments] == [(0, ["hidden/1"])]
    assert len(again.segments[0].damaged) == 1
    assert server.objects[key] == whole
    assert not verify(there(home), SilentProgress())


@pytest.mark.parametrize(
    "name", ["store.json", "segments/000000.parquet", "receipts/000000/span.json"]
)
def test_a_damaged_source_is_refused(tmp_path: Path, name: str) -> None:
    small = filled_store(tmp_path / "from", FEW)
    flip(small.store.root / name, 200)
    with pytest.raises(CorruptDataError):
        copy(SmallStore(FeatureStore.open(small.store.root)), tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_text_whose_digest_is_of_another_is_refused(tmp_path: Path) -> None:
    small = new_store(tmp_path / "from")
    small.add(["a", "b"], [5, 6])
    root = small.store.root
    table = small.store.segment(0).table
    wrong = table.set_column(1, table.schema.field(1), [["a", "c"]])
    pq.write_table(wrong, root / "segments/000000.parquet")
    sha256 = hashlib.sha256((root / "segments/000000.parquet").read_bytes()).hexdigest()
    for path in root.glob("receipts/000000/**/*.json"):
        path.write_bytes(sealed_bytes({**read_sealed(path)[0], "segment_sha256": sha256}))
    with pytest.raises(CorruptDataError, match="a text of segment 0 has the digest"):
        copy(SmallStore(FeatureStore.open(root)), tmp_path / "to")


def test_a_target_that_is_written_is_busy(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    copy(small, tmp_path / "to", ("hidden/1",))
    with writing(there(tmp_path / "to")), pytest.raises(StoreBusyError, match="being written by"):
        copy(small, tmp_path / "to")
    with writing(small.store):  # the source may be written meanwhile
        copy(small, tmp_path / "to")
    assert_reads(there(tmp_path / "to"), small, small.texts, ARRAYS)


def test_a_full_disk_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = filled_store(tmp_path / "from", FEW)
    monkeypatch.setattr(transfer_module, "MARGIN_BYTES", 1 << 60)
    for begins in (
        copy,
        lambda *given: plan_transfer(part_of(small.store, ("*",), None), given[1]),
    ):
        with pytest.raises(
            DiskFullError, match=f"and {1 << 60:,} are left free: .*nothing was started"
        ):
            begins(small, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_other_segments_are_refused(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    new_store(tmp_path / "to", codec="zstd")
    with pytest.raises(InputError, match="codec none there and zstd here"):
        copy(small, tmp_path / "to")


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    with pytest.raises(NotFoundError, match=r"no array .* is called 'hidden/7'; there are"):
        part_of(small.store, ["hidden/1", "hidden/7"], None)
    with pytest.raises(NotFoundError, match="none of the 1 texts"):
        part_of(small.store, ["*"], ["0" * 64])


def test_only_data_that_a_store_has_comes_along(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    for name in (
        "evil.py",
        "sitecustomize.py",
        "features.zarr/hidden/1/evil.pkl",
        "copies/evil.pkl",
    ):
        (small.store.root / name).write_bytes(b"raise SystemExit")
    copy(small, tmp_path / "to")
    names, found = (snapshot(s.root).keys() for s in (small.store, there(tmp_path / "to")))
    assert {Path(n).name for n in names - found} == {"evil.py", "sitecustomize.py", "evil.pkl"}
    assert found < names


def test_a_failed_upload_leaves_whole_cells(server: ObjectServer, tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", FEW)
    home = remote(tmp_path, "to")
    server.refuse = lambda method, key: method == "PUT" and "hidden/1/c/1" in key
    with pytest.raises(ObjectStoreError, match="cannot write"):
        copy(small, home)
    server.refuse = lambda method, key: False
    before = {k for k in server.objects if "/receipts/" in k}
    assert before
    assert not verify(there(home), SilentProgress())
    assert copy(small, home).n_present == sum("text_of_token" not in k for k in before)
    assert not verify(there(home), SilentProgress())
    assert_reads(there(home), small, small.texts, ARRAYS)


CHILD = """
import sys
from pathlib import Path
from permafrost.storage.features.parts import part_of
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.transfer import transfer
from permafrost.storage.progress import SilentProgress
(store,) = all_stores(Path(sys.argv[1]))
transfer(part_of(store, ["*"], None), Path(sys.argv[2]), SilentProgress())
"""


@pytest.mark.deep
def test_kills_leave_whole_cells_only(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "from", 200)
    target, rng, n_receipts = tmp_path / "to", np.random.default_rng(0), 0
    root = store_folder(target, small.store.store_id)
    for attempt in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "from"), str(target)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        enough = n_receipts + int(rng.integers(1, 30))
        while attempt < 7 and child.poll() is None:
            if len(list(root.glob("receipts/*/**/*.json"))) >= enough:
                child.send_signal(signal.SIGKILL)
            time.sleep(0.001)
        child.wait(timeout=60)
        before = {p: p.read_bytes() for p in root.glob("receipts/*/**/*.json")}
        assert len(before) >= n_receipts
        n_receipts = len(before)
        store = there(target)
        assert not [d for d in verify(store, SilentProgress()) if d.segment is not None]
    assert_reads(store, small, small.texts, ARRAYS)
    assert not verify(store, SilentProgress())
    assert copy(small, target).n_cells == 0
