"""Dropping arrays from a store: at every step what is there is right, and the rest is 'not extracted'."""

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from permafrost.storage.drafts import DRAFT_PREFIX
from permafrost.storage.errors import DiskFullError, InputError, NotFoundError
from permafrost.storage.features import dropping
from permafrost.storage.features.dropping import arrays_to_drop, drop_arrays
from permafrost.storage.features.due import Due, note_due, read_due
from permafrost.storage.features.repairing import mend
from permafrost.storage.features.segments import segment_path, table_copy
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import AXES, SmallStore, filled_store, flip

DROPPED = ("hidden/1", "attention_rows/1")
KEPT = "pooled/hidden_mean/1"


class Killed(BaseException):
    """As SIGKILL ends a process: nothing that catches errors catches this."""


@contextlib.contextmanager
def killed_before(patch: pytest.MonkeyPatch, n: int) -> Iterator[None]:
    """The process ends before the n-th change to the file system from here on."""
    left = [n]

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return change(*arguments, **named)

        return counted

    with patch.context() as inside:
        for name in ("rename", "replace", "unlink"):
            inside.setattr(Path, name, counting(getattr(Path, name)))
        inside.setattr(shutil, "rmtree", counting(shutil.rmtree))
        yield


def reads(store: FeatureStore, small: SmallStore, array: str) -> bool:
    """Whether an array is there, whole and right."""
    reader = open_reader(
        store, array, small.digests, budget_bytes=1 << 20, precision="stored", tokens="all"
    )
    for indices, rows in reader.in_order(4):
        for i, found in zip(indices.tolist(), rows, strict=True):
            assert np.array_equal(found, small.expected(array, small.texts[i]))
    return True


def zarr_rows(store: FeatureStore, array: str) -> np.ndarray[Any, Any]:
    group: Any = zarr.open_group(store.zarr_path, mode="r")
    return np.asarray(group[array][...], np.float32)


def drop(store: FeatureStore, *patterns: str) -> None:
    with writing(store) as writer:
        drop_arrays(writer, [d.array for d in arrays_to_drop(store, patterns)])


def test_a_drop_that_is_killed_at_any_step_leaves_a_store_that_is_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = filled_store(tmp_path / "home", 5)
    assert len(small.store.segments()) > 1
    whole = tmp_path / "whole"
    shutil.copytree(small.store.root, whole)
    n_partly, step, ended = 0, -1, False
    while not ended:
        step += 1
        shutil.rmtree(small.store.root)
        shutil.copytree(whole, small.store.root)
        with contextlib.suppress(Killed), killed_before(monkeypatch, step):
            drop(FeatureStore.open(small.store.root), *DROPPED)
            ended = True
        # The kernel frees the lock of a dead process.
        store = FeatureStore.open(small.store.root)
        assert verify(store, SilentProgress()) == [], step
        assert reads(store, small, KEPT)
        group: Any = zarr.open_group(store.zarr_path, mode="r")
        n_there = 0
        for array in DROPPED:
            for segment in store.segments():
                is_there = array in store.committed(segment)
                n_there += is_there
                assert not group.attrs["complete"][array][segment] or is_there
                if is_there:
                    store.open_shard(segment, array).verify()
                else:
                    with pytest.raises(NotFoundError, match="extract it first"):
                        store.open_shard(segment, array)
        freed = [p for p in store.root.rglob(f"{DRAFT_PREFIX}*") if p.is_dir()]
        assert all(p.parent == store.root for p in freed), "where gc looks for them"
        n_partly += 0 < n_there < 2 * len(store.segments())
        drop(store, *DROPPED)
        for array in DROPPED:
            assert not (store.zarr_path / array / "c").exists(), "its bytes are free"
            rows = zarr_rows(store, array)
            assert len(rows) == store.n_slots() * AXES.segment_tokens
            assert np.isnan(rows).all()
        with writing(store):
            assert not list(store.root.rglob(f"{DRAFT_PREFIX}*"))
    assert step >= 8
    assert n_partly > 2


def test_a_drop_that_meets_a_full_disk_leaves_nothing_lying_about(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small.store

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(dropping, "sync_folder", full)
    with pytest.raises(DiskFullError, match="no room to write"):
        drop(store, "hidden/1")
    assert not list(store.root.rglob(f"{DRAFT_PREFIX}*"))
    monkeypatch.undo()
    with pytest.raises(NotFoundError, match="extract it first"):
        reads(FeatureStore.open(store.root), small, "hidden/1")
    assert verify(FeatureStore.open(store.root), SilentProgress()) == []


def test_a_store_grows_evenly_after_a_drop(small: SmallStore) -> None:
    drop(small.store, "hidden/*")
    small.store.forget()
    small.add(["one more"], [9], arrays=("attention_rows/1", KEPT))
    store = FeatureStore.open(small.store.root)
    group: Any = zarr.open_group(store.zarr_path, mode="r")
    assert group["hidden/1"].shape[0] == group["token_ids"].shape[0]
    assert group.attrs["complete"]["hidden/1"] == [False] * store.n_slots()
    assert group.attrs["complete"]["attention_rows/1"] == [True] * store.n_slots()
    assert verify(store, SilentProgress()) == []


def test_what_every_text_needs_cannot_be_dropped(small: SmallStore) -> None:
    with pytest.raises(InputError, match=r"token_ids .* cannot be dropped"):
        arrays_to_drop(small.store, ["token_ids"])
    with pytest.raises(NotFoundError, match=r"'values/\*'; there are attention_rows/1, hidden/1"):
        arrays_to_drop(small.store, ["values/*"])
    assert [d.array for d in arrays_to_drop(small.store, ["*"])] == [
        "attention_rows/1",
        "hidden/1",
        KEPT,
    ]


def test_a_repair_has_nothing_left_to_compute_for_what_was_dropped(small: SmallStore) -> None:
    due = Due(cells={0: ("hidden/1", "attention_rows/1")})
    flip(small.store.shard_path(0, "hidden/1"), 5)
    flip(small.store.shard_path(0, "attention_rows/1"), 5)
    assert mend(small.store.root, SilentProgress()).cells[0] == ("attention_rows/1", "hidden/1")
    store = FeatureStore.open(small.store.root)
    with writing(store):
        note_due(store, due)
    drop(store, "hidden/1")
    assert read_due(store).cells == {0: ("attention_rows/1",)}
    drop(store, "attention_rows/1")
    assert verify(store, SilentProgress()) == []


@pytest.mark.parametrize("how", ["mapped", "unmapped"])
def test_an_open_reader_goes_on_and_no_file_is_changed_in_place(
    small: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "unmapped":

        def refused(*_: Any, **__: Any) -> None:
            raise OSError(19, "No such device")

        monkeypatch.setattr(mmap, "mmap", refused)
    flip(small.store.shard_path(1, KEPT), 5)
    reader = FeatureStore.open(small.store.root)
    opened = {s: reader.open_shard(s, "hidden/1") for s in reader.segments()}
    places, size = reader.locate(small.digests), reader.record.axes.segment_tokens
    starts = places.token_start - places.segment * size
    where = [
        (text, int(places.segment[i]), np.arange(starts[i], starts[i] + places.n_tokens[i]))
        for i, text in enumerate(small.texts)
    ]
    files = [p for p in small.store.root.rglob("*") if p.is_file() and p.name != "writer.lock"]
    links = {p: tmp_path / f"link {i}" for i, p in enumerate(files)}
    for path, link in links.items():
        os.link(path, link)
    before = {link: link.read_bytes() for link in links.values()}

    drop(FeatureStore.open(small.store.root), "hidden/1")
    mend(small.store.root, SilentProgress())
    shutil.rmtree(small.store.root)

    assert {link: link.read_bytes() for link in links.values()} == before, "changed under a reader"
    for text, segment, rows in where:
        found = opened[segment].take(rows)
        assert np.array_equal(found, small.expected("hidden/1", text))


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_drop_leaves_no_receipt_of_a_segment_whose_table_is_lost(
    small: SmallStore, has_copy: bool
) -> None:
    store, before = small.store, len(small.store.segments())
    segment_path(store.root, 1).unlink()
    if not has_copy:
        table_copy(store.root, 1).unlink()
    (planned,) = arrays_to_drop(store, ["hidden/1"])
    assert planned.n_segments == before
    drop(store, "hidden/1")
    assert "hidden/1" not in store.committed(1)
    mended = mend(store.root, SilentProgress())
    assert (mended.restored_tables, mended.cells) == ([1] if has_copy else [], {})
    assert verify(store, SilentProgress()) == []
    assert len(store.segments()) == before - (not has_copy)
