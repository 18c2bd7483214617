import contextlib
import gc
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from permafrost.storage.errors import UnreadableError
from permafrost.storage.features import open_shards
from permafrost.storage.features import shard as shards
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.open_shards import most_open
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.readers import open_reader, read_rows
from tests.storage.small_store import SmallStore, new_store

pytestmark = pytest.mark.deep

N_SEGMENTS = 100
CELL = "hidden/1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    axes = Axes(segment_tokens=32, segment_texts=8, chunk_bytes=128)
    small = new_store(tmp_path_factory.mktemp("many"), axes=axes)
    small.add([f"text {i}" for i in range(N_SEGMENTS)], [32] * N_SEGMENTS, [CELL], whole_span=True)
    assert len(small.store.segments()) == N_SEGMENTS
    return small


@pytest.fixture
def limited() -> Iterator[None]:
    """No more than 64 files beside those that are open before, whatever other tests left open."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(_open_files()) + 64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def few_files(limited: None, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many shards may be open then."""
    monkeypatch.setattr(open_shards, "most_open", lambda: 16)
    return 16


def test_half_of_the_files_of_a_process_may_be_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 512), (20_000, 1024), (10, 8), (resource.RLIM_INFINITY, 1024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_open() == most


@pytest.mark.deep
@pytest.mark.usefixtures("limited")
def test_shards_make_room_where_the_rest_of_the_process_has_taken_more(
    made: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_shards, "most_open", lambda: 1024)
    store = FeatureStore.open(made.store.root)
    for number in store.segments():
        rows = read_rows(store, number, CELL, 0, 32)
        text = store.segment(number).table.column("text").to_pylist()[0]
        assert np.array_equal(rows, made.rows[CELL][text])


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 not paths


def test_more_shards_are_read_than_files_may_be_open(made: SmallStore, few_files: int) -> None:
    before = len(_open_files())
    stores = [FeatureStore.open(made.store.root) for _ in range(3)]
    for store in stores:
        for number in store.segments():
            rows = read_rows(store, number, CELL, 0, 32)
            text = store.segment(number).table.column("text").to_pylist()[0]
            assert np.array_equal(rows, made.rows[CELL][text])
    assert len(_open_files()) <= before + few_files
    reader = open_reader(stores[0], CELL, made.digests, budget_bytes=4096, tokens="all")
    for batches in (reader.in_order(8), reader.shuffled(8, 0, 0)):
        assert sum(len(texts) for texts, _ in batches) == N_SEGMENTS


def test_rows_of_a_shard_that_was_closed_stay_valid(made: SmallStore, few_files: int) -> None:
    store = FeatureStore.open(made.store.root)
    opened = store.open_shard(0, CELL)
    view = opened.read(0, 2)
    assert not view.flags.owndata
    expected = view.copy()
    for number in store.segments():
        read_rows(store, number, CELL, 0, 1)
    assert store.open_shard(0, CELL) is not opened, f"more than {few_files} are open"
    assert np.array_equal(view, expected)
    assert np.array_equal(opened.read(0, 2), expected)


def test_what_was_used_last_stays_open(made: SmallStore, few_files: int) -> None:
    store = FeatureStore.open(made.store.root)
    opened = store.open_shard(0, CELL)
    for number in store.segments():
        store.open_shard(number, CELL)
        assert store.open_shard(0, CELL) is opened
    assert few_files < N_SEGMENTS


def test_checksums_are_made_once_while_a_file_is_the_same(
    made: SmallStore, tmp_path: Path, few_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeatureStore.open(shutil.copytree(made.store.root, tmp_path / made.store.store_id))
    checked, check = list[Path](), shards.check_chunk

    def count(path: Path, *args: Any) -> None:
        checked.append(path)
        check(path, *args)

    monkeypatch.setattr(shards, "check_chunk", count)

    def read_all() -> int:
        checked.clear()
        for number in store.segments():
            read_rows(store, number, CELL, 0, 32)
        return len(checked)

    n_chunks = -(-32 // store.spec(CELL).chunk_rows(store.record.axes))
    assert (read_all(), read_all()) == (N_SEGMENTS * n_chunks, 0)
    # Written again, as a repair does.
    path = store.shard_path(0, CELL)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert read_all() == n_chunks
    assert few_files < N_SEGMENTS


def test_too_many_open_files_are_not_damage(made: SmallStore, few_files: int) -> None:
    store = FeatureStore.open(made.store.root)
    store.open_shard(0, CELL)
    receipt = store.checked_receipt(1, CELL)
    held = list[int]()
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    try:
        with pytest.raises(UnreadableError, match=r"Too many open files.*ulimit -n"):
            store.rows_at(store.shard_path(1, CELL), receipt)
    finally:
        for fd in held:
            os.close(fd)
    assert few_files
