import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from permafrost.storage.errors import DiskFullError, StoreBusyError
from permafrost.storage.features.receipts import measure, read_receipt, receipt_path
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import lock_path, writing
from permafrost.storage.progress import SilentProgress
from tests.storage.small_store import (
    IDENTITY,
    SmallStore,
    as_float32,
    draft_of,
    new_store,
    snapshot,
)

REPOSITORY = Path(__file__).parents[3]

HOLD = """
import sys
from pathlib import Path
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing

with writing(FeatureStore.open(Path(sys.argv[1]))):
    sys.stdout.write("holding\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def _holder(store: FeatureStore) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.root)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def _lease(store: FeatureStore) -> None:
    with writing(store):
        pass


def test_a_second_writer_in_this_process_is_refused(small: SmallStore) -> None:
    with writing(small.store):
        before = snapshot(small.store.root)
        with pytest.raises(
            StoreBusyError, match=f"written by process {os.getpid()} on .*, since 20"
        ):
            _lease(small.store)
        assert snapshot(small.store.root) == before
    _lease(small.store)


def test_another_process_holds_the_lease_until_it_is_killed(small: SmallStore) -> None:
    with _holder(small.store) as process:
        with pytest.raises(StoreBusyError, match=f"written by process {process.pid} on "):
            _lease(small.store)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _lease(small.store)


def test_who_looks_whether_a_store_is_written_keeps_no_writer_out(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(small.store):
        pass
    with lock_path(small.store).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda seconds: fcntl.flock(looking, fcntl.LOCK_UN))
        with writing(small.store):
            pass


def test_the_lease_is_free_although_another_process_inherited_the_lock(small: SmallStore) -> None:
    """As one that was forked while it was held."""
    lock = lock_path(small.store)
    with writing(small.store):
        (held,) = (fd for fd in _open_files() if _is_file(fd, lock))
        child = subprocess.Popen(
            ["cat"], pass_fds=[held], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
    with child:
        _lease(small.store)
        assert child.poll() is None


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 not paths


def _is_file(fd: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def test_the_lease_is_free_after_an_error(small: SmallStore) -> None:
    def fail() -> None:
        with writing(small.store):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    _lease(small.store)


def test_the_next_lease_removes_what_a_killed_writer_left(small: SmallStore) -> None:
    committed = snapshot(small.store.root)
    left = [
        small.store.shard_path(0, "hidden/1").with_name(".draft-0-abc"),
        receipt_path(small.store.root, 0, "hidden/1").with_name(".draft-1.json-abc"),
        small.store.root / "segments" / ".draft-000009.parquet-abc",
        small.store.root / ".draft-store.json-abc",
    ]
    for path in left:
        path.write_bytes(b"half")
    _lease(small.store)
    after = snapshot(small.store.root)
    after.pop("writer.lock"), committed.pop("writer.lock")
    assert after == committed


def test_a_fill_left_without_commit_leaves_nothing(small: SmallStore) -> None:
    with writing(small.store) as writer:
        before = snapshot(small.store.root)
        with draft_of(writer, 0, ["hidden/2", "values/1"], {}) as draft:
            draft.append("hidden/2", np.ones((3, 8), np.float16))
            assert draft.is_open
        assert not draft.is_open
        assert snapshot(small.store.root) == before
    assert small.store.missing_cells([0], ["hidden/2"]) == {0: ("hidden/2",)}


def test_what_is_committed_is_not_written_again(small: SmallStore) -> None:
    with writing(small.store) as writer, pytest.raises(AssertionError, match="already committed"):
        writer.assign(0, ["hidden/1", "hidden/2"])


def test_widening_touches_no_committed_file(small: SmallStore) -> None:
    def cells() -> dict[str, tuple[int, bytes]]:
        files = snapshot(small.store.root)
        return {n: f for n, f in files.items() if "/c/" in n or n.startswith(("rec", "seg"))}

    before = cells()
    rng = np.random.default_rng(1)
    with writing(small.store) as writer:
        writer.declare(["hidden/2"])
        for number in small.store.segments():
            small.fill(writer, number, ["hidden/2"], rng)
    small.add(["another text"], [9])
    assert before.items() <= cells().items()
    assert "hidden/2" in small.store.arrays()
    assert verify(small.store, SilentProgress()) == []


def test_a_receipt_records_what_was_written(small: SmallStore) -> None:
    receipt = read_receipt(small.store.root, 0, "hidden/1")
    segment = small.store.segment(0)
    texts = segment.table.column("text").to_pylist()
    rows = np.concatenate([small.expected("hidden/1", t) for t in texts])
    assert receipt.n_rows == segment.n_tokens == len(rows)
    assert receipt.n_texts == segment.n_texts
    assert receipt.shard_bytes == (small.store.root / receipt.shard).stat().st_size
    assert receipt.provenance["library"] == "1.0"
    assert receipt.provenance["committed"].endswith("+00:00")
    wide = rows.astype(np.float64)
    found = receipt.statistics
    assert (found.count, found.nonfinite) == (wide.size, 0)
    assert (found.mean, found.min, found.max) == (
        pytest.approx(wide.mean()),
        wide.min(),
        wide.max(),
    )
    assert found.variance == pytest.approx(wide.var(), rel=1e-4)


def test_statistics_of_bfloat16_are_those_of_the_numbers_not_of_their_bits(tmp_path: Path) -> None:
    identity = IDENTITY.model_copy(update={"storage_dtype": "bfloat16"})
    small = new_store(tmp_path, identity=identity)
    small.add(["a", "b"], [4, 6], ["hidden/1"])
    rows = np.concatenate([as_float32(r, "bfloat16") for r in small.rows["hidden/1"].values()])
    found = read_receipt(small.store.root, 0, "hidden/1").statistics
    assert found.mean == pytest.approx(rows.mean(), abs=1e-6)
    assert (found.min, found.max) == (rows.min(), rows.max())


def test_statistics_given_by_the_caller_are_kept(small: SmallStore) -> None:
    n_texts = small.store.segment(0).n_texts
    given = measure(np.array([5.0, 7.0]))
    array = "pooled/hidden_last/1"
    with writing(small.store) as writer, draft_of(writer, 0, [array], {}) as draft:
        draft.append(array, np.zeros((n_texts, 8), np.float16), given)
        writer.commit(draft.seal())
    assert read_receipt(small.store.root, 0, array).statistics == given


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("module", "function"), [(os, "posix_fallocate"), (os, "write"), (os, "ftruncate")]
)
def test_a_full_disk_while_writing_a_shard_leaves_committed_data_intact(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch, module: object, function: str
) -> None:
    segment = small.store.segment(0)

    def fill() -> None:
        with draft_of(writer, 0, ["hidden/2", "values/1"], {}) as begun:
            begun.append("hidden/2", np.ones((segment.n_tokens, 8), np.float16))
            begun.append("values/1", np.ones((segment.n_tokens, 4), np.float16))
            writer.commit(begun.seal())

    with writing(small.store) as writer:
        writer.declare(["hidden/2", "values/1"])
        before = snapshot(small.store.root)
        with monkeypatch.context() as patch:
            patch.setattr(module, function, _full)
            with pytest.raises(DiskFullError, match=r"no room to write .*hidden/2.*half-written"):
                fill()
        assert snapshot(small.store.root) == before
        fill()
    assert {"hidden/2", "values/1"} <= small.store.committed(0)
    assert verify(small.store, SilentProgress()) == []


def test_a_disk_that_fills_up_during_a_commit_keeps_only_cells_with_a_receipt(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = small.store.segment(0)
    arrays = ["hidden/2", "values/1", "values/2"]
    unpatched = os.fsync
    calls = iter(range(1000))

    def fill(room: int) -> None:
        def fsync(fd: int) -> None:
            if next(calls) >= room:
                _full()
            unpatched(fd)

        with draft_of(writer, 0, arrays, {}) as begun:
            for array in arrays:
                width = 8 if array == "hidden/2" else 4
                begun.append(array, np.ones((segment.n_tokens, width), np.float16))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", fsync)
                writer.commit(begun.seal())

    with writing(small.store) as writer:
        writer.declare(arrays)
        before = snapshot(small.store.root)
        # Three shards take six fsyncs, their receipts two each: once between the shards, once when the first
        # receipt has its name, once between the receipts.
        for room in (3, 7, 4):
            calls = iter(range(1000))
            with pytest.raises(DiskFullError):
                fill(room)
            kept = small.store.committed(0) & set(arrays)
            shards = [a for a in arrays if small.store.shard_path(0, a).exists()]
            assert sorted(kept) == shards
            assert before.items() <= snapshot(small.store.root).items()
            arrays = [a for a in arrays if a not in kept]
        assert arrays == ["values/1", "values/2"]
        assert verify(small.store, SilentProgress()) == []


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from permafrost.storage.errors import DiskFullError
from permafrost.storage.features.segment_drafts import SegmentDraft
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing

store = FeatureStore.open(Path(sys.argv[1]))
with writing(store) as writer:
    cells = writer.assign(0, ["hidden/2"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
    try:
        with SegmentDraft(store, cells, {}):
            pass
    except DiskFullError as error:
        sys.exit(str(error))
"""


def test_a_real_limit_on_file_size_is_a_full_disk(small: SmallStore) -> None:
    before = snapshot(small.store.root)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(small.store.root)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no room to write" in done.stderr
    assert "File too large" in done.stderr
    after = snapshot(small.store.root)
    after.pop("writer.lock"), before.pop("writer.lock")
    assert after == before


def test_metadata_covers_every_segment_and_is_written_only_when_it_changes(
    small: SmallStore,
) -> None:
    n = small.store.n_slots()
    for array in small.store.arrays():
        path = small.store.zarr_path / array / "zarr.json"
        rows = small.store.spec(array).segment_rows(small.store.record.axes)
        assert json.loads(path.read_text())["shape"][0] == n * rows
    with writing(small.store) as writer:
        before = snapshot(small.store.root)
        writer.declare(["hidden/1"])
        assert snapshot(small.store.root) == before
