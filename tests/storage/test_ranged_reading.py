"""Reading little of a store in an object store fetches little: what was sent is counted at the server."""

from pathlib import Path

import numpy as np
import pytest

from permafrost.storage.errors import PermafrostError
from permafrost.storage.features.layout import Axes, Codec
from permafrost.storage.features.shard import CRC_BYTES, index_bytes
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import WindowedReader, open_reader
from permafrost.storage.replica import attach
from tests.storage.object_server import ObjectServer
from tests.storage.small_store import IDENTITY, SmallStore, new_store

ARRAY = "hidden/1"
AXES = Axes(segment_tokens=1024, segment_texts=128, chunk_bytes=512)
"""Chunks of 32 rows of 16 bytes, 32 in a shard."""
LENGTHS = [30, 20, 25, 32, 12] * 8
TEXTS = [f"text {i}" for i in range(len(LENGTHS))]


def opened(tmp_path: Path, name: str) -> FeatureStore:
    (store,) = all_stores(attach("s3://bucket/lab", tmp_path / name, SilentProgress()))
    return store


def filled(server: ObjectServer, tmp_path: Path, codec: Codec = "none") -> SmallStore:
    home = attach("s3://bucket/lab", tmp_path / "writer", SilentProgress())
    small = new_store(home, axes=AXES, codec=codec, identity=IDENTITY)
    small.add(TEXTS, LENGTHS, (ARRAY, "pooled/hidden_mean/1"))
    server.sent.clear()
    return small


def rows(store: FeatureStore, array: str, texts: list[str]) -> list[np.ndarray]:
    reader = open_reader(
        store, array, [text_digest(t) for t in texts], budget_bytes=1 << 30, precision="stored"
    )
    return [r[i] for found, r in reader.in_order(64) for i in range(len(found))]


def sent(server: ObjectServer, array: str) -> int:
    return sum(n for key, n in server.sent.items() if f"/{array}/c/" in key)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_one_text_costs_the_chunks_that_hold_it_and_the_index(
    server: ObjectServer, tmp_path: Path, codec: Codec
) -> None:
    small = filled(server, tmp_path, codec)
    store = opened(tmp_path, "reader")
    server.sent.clear()
    text = TEXTS[17]
    (found,) = rows(store, ARRAY, [text])
    assert np.array_equal(found, small.expected(ARRAY, text, span=True))
    where = store.locate([text_digest(text)])
    start = int(where.token_start[0])
    first, last = start // 32, (start + int(where.n_tokens[0]) - 1) // 32
    chunk = 512 + CRC_BYTES if codec == "none" else 600
    cost = sent(server, ARRAY)
    assert 0 < cost <= index_bytes(32) + (last - first + 1) * chunk
    n_shard = len(server.objects[next(k for k in server.objects if f"/{ARRAY}/c/0" in k)])
    assert cost < n_shard / 4
    assert sum(server.sent.values()) <= cost + 2 * AXES.segment_tokens, "and its span"
    assert not store.shard_path(0, ARRAY).exists()


def test_a_segment_that_is_read_whole_is_fetched_once(server: ObjectServer, tmp_path: Path) -> None:
    small = filled(server, tmp_path)
    store = opened(tmp_path, "reader")
    server.sent.clear()
    for _ in range(2):
        for text, found in zip(TEXTS, rows(store, ARRAY, TEXTS), strict=True):
            assert np.array_equal(found, small.expected(ARRAY, text, span=True))
    assert store.shard_path(0, ARRAY).exists()
    n_shard = store.checked_receipt(0, ARRAY).shard_bytes
    assert n_shard <= sent(server, ARRAY) <= n_shard + index_bytes(32)


def test_many_small_reads_cost_no_more_than_twice_the_shard(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(server, tmp_path)
    store = opened(tmp_path, "reader")
    where = store.locate(small.digests)
    reader = WindowedReader(store, ARRAY, where, 1 << 20, "stored")
    server.sent.clear()
    order = np.random.default_rng(0).permutation(len(TEXTS)).tolist()
    for i in order * 3:
        found = reader.load(np.array([i]))
        assert np.array_equal(found.data, small.expected(ARRAY, TEXTS[i]))
    assert sent(server, ARRAY) <= 2 * store.checked_receipt(0, ARRAY).shard_bytes
    assert store.shard_path(0, ARRAY).exists()


def test_a_windowed_reader_of_few_texts_fetches_no_shard(
    server: ObjectServer, tmp_path: Path
) -> None:
    small = filled(server, tmp_path)
    store = opened(tmp_path, "reader")
    reader = WindowedReader(store, ARRAY, store.locate(small.digests[:2]), 1 << 20, "stored")
    for _ in reader.in_order(1):
        pass
    for _ in reader.shuffled(1, 0, 0):
        pass
    assert not store.shard_path(0, ARRAY).exists()


@pytest.mark.parametrize("what", ["chunk", "index", "short", "gone"])
def test_what_is_spoilt_is_told_and_never_returned(
    server: ObjectServer, tmp_path: Path, what: str
) -> None:
    filled(server, tmp_path)
    store = opened(tmp_path, "reader")
    key = next(k for k in server.objects if f"/{ARRAY}/c/0" in k)
    content = bytearray(server.objects[key])
    start = int(store.locate([text_digest(TEXTS[0])]).token_start[0])
    match what:
        case "chunk":
            content[start // 32 * (512 + CRC_BYTES) + 5] ^= 1
        case "index":
            content[-index_bytes(32) + 2] ^= 1
        case _:
            content = content[: len(content) // 2]
    if what == "gone":
        del server.objects[key]
    else:
        server.objects[key] = bytes(content)
    with pytest.raises(PermafrostError, match=r"checksum|cannot read|is not there|of the") as told:
        rows(store, ARRAY, [TEXTS[0]])
    assert "s3://bucket/lab/features/" in str(told.value)
    assert str(tmp_path) not in str(told.value)
