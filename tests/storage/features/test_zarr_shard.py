"""A file system without memory maps: the same rows, through the Zarr API."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features import shard
from permafrost.storage.features.layout import Codec
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.features.zarr_shard import ZarrShard
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import SmallStore, filled_store, flip

ARRAYS = ("token_ids", "span", "hidden/1", "attention_rows/1", "pooled/hidden_mean/1")


@pytest.fixture
def unmappable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every map is refused, as some network and FUSE file systems do."""

    def refused(file: Any) -> None:
        raise shard.CannotMapError(f"[Errno 19] No such device: {file.name}")

    monkeypatch.setattr(shard, "mapping_of", refused)


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
def test_the_same_rows_come_through_the_zarr_api(
    tmp_path: Path, codec: Codec, dtype: str, request: pytest.FixtureRequest
) -> None:
    small = filled_store(tmp_path, codec=codec, dtype=dtype)
    rng = np.random.default_rng(0)
    mapped = {cell: small.store.reopen_shard(*cell) for cell in _cells(small)}
    request.getfixturevalue("unmappable")
    assert len({segment for segment, _ in mapped}) > 2
    for cell, expected in mapped.items():
        found = small.store.reopen_shard(*cell)
        assert isinstance(found, ZarrShard)
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
def test_a_flipped_byte_anywhere_is_found_before_any_row_is_given(
    tmp_path: Path, codec: Codec
) -> None:
    small = filled_store(tmp_path, 6, codec=codec)
    path = small.store.shard_path(0, "hidden/1")
    for at in range(path.stat().st_size):
        flip(path, at)
        with pytest.raises(CorruptDataError, match=r"is damaged.*checksum"):
            small.store.reopen_shard(0, "hidden/1")
        flip(path, at)


@pytest.mark.usefixtures("unmappable")
def test_truncated_missing_or_undescribed_shards_are_refused(tmp_path: Path) -> None:
    small = filled_store(tmp_path)
    path = small.store.shard_path(0, "hidden/1")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptDataError, match=r"has [\d,]+ bytes, its receipt says"):
        small.store.reopen_shard(0, "hidden/1")
    path.unlink()
    with pytest.raises(CorruptDataError, match="the file is missing"):
        small.store.reopen_shard(0, "hidden/1")
    path.write_bytes(whole)
    metadata = small.store.zarr_path / "hidden/1/zarr.json"
    kept = metadata.read_text()
    metadata.write_text(json.dumps(json.loads(kept) | {"shape": [0, 8]}))
    with pytest.raises(CorruptDataError, match="for a chunk, the store says float16"):
        small.store.reopen_shard(0, "hidden/1").read(0, 1)
    metadata.unlink()
    with pytest.raises(CorruptDataError, match=r"the metadata of .* cannot be read"):
        small.store.reopen_shard(0, "hidden/1")


@pytest.mark.usefixtures("unmappable")
def test_a_shard_of_another_store_is_damage(tmp_path: Path) -> None:
    small = filled_store(tmp_path / "a")
    other = filled_store(tmp_path / "b", arrays=("attention_rows/1", "hidden/1"))
    shutil.copyfile(other.store.shard_path(0, "hidden/1"), small.store.shard_path(0, "hidden/1"))
    with pytest.raises(CorruptDataError, match="is damaged"):
        small.store.reopen_shard(0, "hidden/1")
