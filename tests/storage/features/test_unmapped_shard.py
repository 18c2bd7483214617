"""A file system without memory maps: the same rows, read a chunk at a time."""

import mmap
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.layout import Codec
from permafrost.storage.features.shard import CRC_BYTES, ShardRows
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import SmallStore, filled_store, flip

ARRAYS = ("token_ids", "span", "hidden/1", "attention_rows/1", "pooled/hidden_mean/1")


@pytest.fixture
def unmappable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every map is refused, as some network and FUSE file systems do."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", refused)


def _cells(small: SmallStore) -> list[tuple[int, str]]:
    return [(s, a) for s in small.store.segments() for a in ARRAYS]


def _rows(store: FeatureStore, segment: int, array: str) -> int:
    axis = store.spec(array).axis
    return (
        int(store.segment(segment).lengths.sum())
        if axis == "token"
        else len(store.segment(segment).lengths)
    )


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_same_rows_come_without_a_map(
    tmp_path: Path, codec: Codec, dtype: str, request: pytest.FixtureRequest
) -> None:
    small = filled_store(tmp_path, codec=codec, dtype=dtype)
    rng = np.random.default_rng(0)
    mapped = {cell: small.store.reopen_shard(*cell) for cell in _cells(small)}
    request.getfixturevalue("unmappable")
    assert len({segment for segment, _ in mapped}) > 2
    for cell, expected in mapped.items():
        found = small.store.reopen_shard(*cell)
        n = _rows(small.store, *cell)
        assert np.array_equal(found.read(0, n), expected.read(0, n))
        start, stop = sorted(rng.choice(n + 1, 2, replace=False).tolist())
        assert np.array_equal(found.read(start, stop), expected.read(start, stop))
        wanted = rng.integers(0, n, 30)
        assert np.array_equal(found.take(wanted), expected.take(wanted))
        found.verify()


@pytest.mark.usefixtures("unmappable")
@pytest.mark.parametrize("budget", [1 << 30, 4000])
def test_readers_and_verify_work_without_maps(tmp_path: Path, budget: int) -> None:
    small = filled_store(tmp_path)
    reader = open_reader(
        small.store,
        "hidden/1",
        [text_digest(t) for t in small.texts],
        budget_bytes=budget,
        tokens="all",
        precision="stored",
    )
    seen = 0
    for texts, rows in reader.shuffled(4, seed=0, epoch=0):
        for k, i in enumerate(texts.tolist()):
            assert np.array_equal(rows[k], small.expected("hidden/1", small.texts[i]))
            seen += 1
    assert seen == len(small.texts)
    assert verify(small.store, SilentProgress()) == []


@pytest.mark.usefixtures("unmappable")
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_flipped_byte_anywhere_is_found_and_gives_no_wrong_row(
    tmp_path: Path, codec: Codec
) -> None:
    small = filled_store(tmp_path, 6, codec=codec)
    path, n = small.store.shard_path(0, "hidden/1"), _rows(small.store, 0, "hidden/1")
    expected = small.store.reopen_shard(0, "hidden/1").read(0, n)
    spec, axes = small.store.spec("hidden/1"), small.store.record.axes
    seal = small.store.checked_receipt(0, "hidden/1").seal
    refused: list[str] = []
    for at in range(path.stat().st_size):
        flip(path, at)
        try:
            found = ShardRows(
                path,
                seal=seal,
                row_shape=(spec.width,),
                dtype=spec.storage,
                chunk_rows=spec.chunk_rows(axes),
                shard_rows=spec.segment_rows(axes),
                codec=codec,
            )
            assert np.array_equal(found.read(0, n), expected)
            with pytest.raises(CorruptDataError, match="the checksum of the file"):
                found.verify()
        except CorruptDataError as error:
            refused.append(str(error))
        flip(path, at)
    # All but the checksums behind the chunks, which only Zarr's engines read.
    n_chunks = -(-n // spec.chunk_rows(axes))
    assert all(re.search(r"is damaged.*checksum", message) for message in refused)
    assert len(refused) == path.stat().st_size - CRC_BYTES * n_chunks


@pytest.mark.usefixtures("unmappable")
def test_a_chunk_that_changes_after_it_was_read_is_found(tmp_path: Path) -> None:
    small = filled_store(tmp_path)
    shard = small.store.open_shard(0, "hidden/1")
    chunk_rows = small.store.spec("hidden/1").chunk_rows(small.store.record.axes)
    shard.read(0, 1)
    shard.read(chunk_rows, chunk_rows + 1)
    flip(small.store.shard_path(0, "hidden/1"), 3)
    with pytest.raises(CorruptDataError, match="the checksum of chunk 0"):
        shard.read(0, 1)


@pytest.mark.usefixtures("unmappable")
def test_truncated_and_missing_shards_are_refused(tmp_path: Path) -> None:
    small = filled_store(tmp_path)
    path = small.store.shard_path(0, "hidden/1")
    opened = small.store.open_shard(0, "hidden/1")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptDataError, match=r"has [\d,]+ bytes, its receipt says"):
        small.store.reopen_shard(0, "hidden/1")
    chunk_rows = small.store.spec("hidden/1").chunk_rows(small.store.record.axes)
    path.write_bytes(whole[:10])
    with pytest.raises(CorruptDataError, match="checksum of chunk 0"):
        opened.read(0, 1)
    path.unlink()
    with pytest.raises(CorruptDataError, match="the file is missing"):
        small.store.reopen_shard(0, "hidden/1")
    with pytest.raises(CorruptDataError, match="checksum of chunk 1"):
        opened.read(chunk_rows, chunk_rows + 1)


@pytest.mark.usefixtures("unmappable")
def test_a_shard_of_another_store_is_damage(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "a")
    other = filled_store(tmp_path / "b", arrays=("attention_rows/1", "hidden/1"))
    shutil.copyfile(other.store.shard_path(0, "hidden/1"), small.store.shard_path(0, "hidden/1"))
    with pytest.raises(CorruptDataError, match="is damaged"):
        small.store.reopen_shard(0, "hidden/1").read(0, 1)
