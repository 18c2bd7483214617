"""A written shard is a valid Zarr v3 shard: our mapped reader and three engines read the same rows."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
import zarrs  # noqa: F401  (registers its codec pipeline)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from permafrost.storage.errors import CorruptDataError
from permafrost.storage.features.layout import (
    ArraySpec,
    Axes,
    Codec,
    check_axes,
    choose_axes,
    shard_key,
    zarr_metadata,
)
from permafrost.storage.features.shard import ShardRows, ShardSeal, ShardWriter, unlike
from tests.storage.small_store import flip, make_rows

SPECS = [
    ArraySpec("hidden/1", "token", 4, "float16"),
    ArraySpec("hidden/1", "token", 3, "float32"),
    ArraySpec("hidden/1", "token", 5, "bfloat16"),
    ArraySpec("token_ids", "token", None, "int32"),
    ArraySpec("span", "token", None, "bool"),
    ArraySpec("pooled/hidden_mean/1", "text", 4, "float16"),
]
SPEC_IDS = [f"{s.name}-{s.dtype}" for s in SPECS]
ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}


@contextmanager
def _written(
    spec: ArraySpec, axes: Axes, portions: list[NDArray[Any]], codec: Codec
) -> Iterator[tuple[Path, ShardSeal, ShardRows]]:
    """One array of one segment on disk, appended in these portions."""
    tail = () if spec.width is None else (spec.width,)
    shape: dict[str, Any] = {
        "row_shape": tail,
        "dtype": spec.storage,
        "chunk_rows": spec.chunk_rows(axes),
        "shard_rows": spec.segment_rows(axes),
        "codec": codec,
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        path = root / shard_key(spec, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        n_rows = sum(map(len, portions))
        writer = ShardWriter(path, path, n_rows=n_rows, fill=spec.fill, **shape)
        for rows in portions:
            writer.append(rows)
        seal = writer.seal()
        metadata = zarr_metadata(spec, axes, 1, codec)
        (root / spec.name / "zarr.json").write_text(json.dumps(metadata))
        yield root / spec.name, seal, ShardRows(path, seal=seal, **shape)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[ArraySpec, Axes, list[NDArray[Any]], Codec]:
    spec = draw(st.sampled_from(SPECS))
    axes = Axes(
        segment_tokens=draw(st.sampled_from([8, 16, 64])),
        segment_texts=draw(st.sampled_from([4, 16])),
        chunk_bytes=draw(st.sampled_from([16, 32, 128, 1 << 20])),
    )
    size = spec.segment_rows(axes)
    portions = draw(st.lists(st.integers(0, size), min_size=1, max_size=6))
    kept: list[int] = []
    for n in portions:
        kept.append(min(n, size - sum(kept)))
    kept[-1] += not sum(kept)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tail = () if spec.width is None else (spec.width,)
    rows = [make_rows((n, *tail), spec.dtype, rng) for n in kept]
    return spec, axes, rows, draw(st.sampled_from(["none", "zstd"]))


def _through_tensorstore(path: Path) -> NDArray[Any]:
    opened = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    ).result()
    return opened.read().result()


@settings(max_examples=60)
@given(_cases())
def test_any_portions_read_back_the_same_through_every_engine(
    case: tuple[ArraySpec, Axes, list[NDArray[Any]], Codec],
) -> None:
    spec, axes, portions, codec = case
    rows = np.concatenate(portions)
    with _written(spec, axes, portions, codec) as (path, _, mapped):
        assert np.array_equal(mapped.read(0, len(rows)), rows)
        mapped.verify()
        whole = {"zarr": zarr.open_array(path, mode="r")[...], "ts": _through_tensorstore(path)}
        with zarr.config.set(ZARRS):
            whole["zarrs"] = zarr.open_array(path, mode="r")[...]
    for engine, found in whole.items():
        assert found.dtype == spec.storage, engine
        assert len(found) == spec.segment_rows(axes), engine
        assert np.array_equal(found[: len(rows)], rows), engine
        unused = found[len(rows) :]
        assert np.array_equal(
            unused, np.full_like(unused, spec.fill), equal_nan=spec.fill != spec.fill
        )


@given(st.data())
def test_any_range_and_any_rows_equal_numpy(data: st.DataObject) -> None:
    spec, axes, portions, codec = data.draw(_cases())
    rows = np.concatenate(portions)
    with _written(spec, axes, portions, codec) as (_, _, mapped):
        start = data.draw(st.integers(0, len(rows) - 1))
        stop = data.draw(st.integers(start + 1, len(rows)))
        assert np.array_equal(mapped.read(start, stop), rows[start:stop])
        wanted = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1))), dtype=np.int64)
        assert np.array_equal(mapped.take(wanted), rows[wanted])


@pytest.mark.parametrize("spec", SPECS, ids=SPEC_IDS)
def test_unused_slots_cost_no_disk(spec: ArraySpec) -> None:
    axes = Axes(segment_tokens=1024, segment_texts=1024, chunk_bytes=64)
    tail = () if spec.width is None else (spec.width,)
    rows = make_rows((1, *tail), spec.dtype, np.random.default_rng(0))
    with _written(spec, axes, [rows], "none") as (path, seal, _):
        chunk = spec.chunk_rows(axes) * spec.row_bytes
        index = 16 * spec.segment_rows(axes) // spec.chunk_rows(axes)
        assert seal.n_bytes == chunk + 4 + index + 4
        (shard,) = (p for p in path.rglob("*") if p.is_file() and p.name != "zarr.json")
        assert shard.stat().st_size == seal.n_bytes


def _sample(codec: Codec) -> tuple[ArraySpec, Axes, list[NDArray[Any]], Codec]:
    axes = Axes(segment_tokens=16, segment_texts=4, chunk_bytes=32)
    return SPECS[0], axes, [make_rows((14, 4), "float16", np.random.default_rng(0))], codec


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_flipped_byte_anywhere_never_comes_back_as_data(codec: Codec) -> None:
    with _written(*_sample(codec)) as (path, seal, mapped):
        rows = mapped.read(0, 14)
        shard = path / "c" / "0" / "0"
        for at in range(shard.stat().st_size):
            flip(shard, at)
            found = _read_or_none(shard, seal, codec)
            # Only the checksums that Zarr engines use may change without changing what we read.
            assert found is None or np.array_equal(found, rows), at
            with pytest.raises(CorruptDataError, match="is damaged"):
                _reopened(shard, seal, codec).verify()
            flip(shard, at)


def _reopened(path: Path, seal: ShardSeal, codec: Codec) -> ShardRows:
    return ShardRows(
        path,
        seal=seal,
        row_shape=(4,),
        dtype=np.dtype("<f2"),
        chunk_rows=4,
        shard_rows=16,
        codec=codec,
    )


def _read_or_none(path: Path, seal: ShardSeal, codec: Codec) -> NDArray[Any] | None:
    try:
        return _reopened(path, seal, codec).read(0, 14)
    except CorruptDataError:
        return None


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("keep", [0, 1, 50])
def test_a_truncated_shard_is_refused_when_opened(codec: Codec, keep: int) -> None:
    with _written(*_sample(codec)) as (path, seal, _):
        shard = path / "c" / "0" / "0"
        shard.write_bytes(shard.read_bytes()[:keep])
        with pytest.raises(CorruptDataError, match=r"empty|bytes, its receipt says"):
            _reopened(shard, seal, codec)


def test_a_shard_that_is_not_there_is_corrupt() -> None:
    with _written(*_sample("none")) as (path, seal, _):
        shard = path / "c" / "0" / "0"
        shard.unlink()
        with pytest.raises(CorruptDataError, match="missing or empty"):
            _reopened(shard, seal, "none")


def _writer(folder: Path, n_rows: int = 3) -> ShardWriter:
    return ShardWriter(
        folder / "draft",
        folder / "c" / "0",
        n_rows=n_rows,
        row_shape=(2,),
        dtype=np.dtype("<f2"),
        chunk_rows=2,
        shard_rows=4,
        codec="none",
        fill=0.0,
    )


def test_an_abandoned_shard_leaves_no_file(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.append(np.zeros((2, 2), np.float16))
    writer.abandon()
    writer.abandon()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_too_many_or_too_few_rows_are_our_own_bug(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    with pytest.raises(AssertionError, match="0 of 3 rows arrived"):
        writer.seal()
    with pytest.raises(AssertionError, match="4 rows into a shard of 3"):
        writer.append(np.zeros((4, 2), np.float16))
    writer.abandon()


def test_a_writer_makes_a_draft_and_nothing_else(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.append(np.zeros((3, 2), np.float16))
    seal = writer.seal()
    assert [p.name for p in tmp_path.iterdir()] == ["draft"]
    assert unlike(tmp_path / "draft", seal, 2) is None


def test_a_file_without_a_chunk_of_its_seal_is_unlike_it(tmp_path: Path) -> None:
    writer = _writer(tmp_path, n_rows=2)
    writer.append(np.zeros((2, 2), np.float16))
    seal = writer.seal()
    more = replace(seal, chunk_crc32c=(*seal.chunk_crc32c, 0))
    assert unlike(tmp_path / "draft", more, 2) == "it has no chunk 1"


@given(
    st.integers(1, 20_000),
    st.sampled_from(["float16", "float32", "bfloat16"]),
    st.integers(1, 100_000),
)
def test_chosen_segments_hold_the_longest_text_and_divide_into_chunks(
    d_model: int, dtype: Any, max_length: int
) -> None:
    axes = choose_axes(d_model, dtype, max_length)
    check_axes(axes, max_length)
    spec = ArraySpec("hidden/1", "token", d_model, dtype)
    assert axes.segment_tokens % spec.chunk_rows(axes) == 0
    fits = axes.segment_tokens * spec.row_bytes <= 64 << 20
    assert fits or axes.segment_tokens < 2 * max_length
    assert spec.chunk_rows(axes) * spec.row_bytes <= max(1 << 20, spec.row_bytes)


@pytest.mark.parametrize(
    "rows",
    [
        np.full((2, 2), 1e6, np.float32),
        np.ones((2, 2), np.int64),
        np.ones((2, 1), np.float16),
        np.ones(2, np.float16),
    ],
)
def test_rows_are_neither_cast_nor_repeated(tmp_path: Path, rows: NDArray[Any]) -> None:
    writer = _writer(tmp_path)
    with pytest.raises(AssertionError, match=r"into a shard of float16 \[2\]"):
        writer.append(rows)
    writer.abandon()
