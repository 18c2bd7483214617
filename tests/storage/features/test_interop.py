"""The store is read by tools that know nothing of us. Each opens it its own way and must give our rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import tensorstore
import zarr
import zarrs  # noqa: F401  (registers its codec pipeline)
from numpy.typing import NDArray

from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.writing import writing
from tests.storage.conftest import Shared
from tests.storage.small_store import AXES, SmallStore

ARRAYS = {
    "token_ids": ("token",),
    "span": ("token",),
    "hidden/1": ("token", "d_model"),
    "attention_rows/1": ("token", "attn_head"),
    "pooled/hidden_mean/1": ("text", "d_model"),
}


def _with_zarr(path: Path, array: str) -> NDArray[Any]:
    opened = zarr.open_group(path, mode="r")[array]
    assert isinstance(opened, zarr.Array)
    return np.asarray(opened[...])


def _with_zarrs(path: Path, array: str) -> NDArray[Any]:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return _with_zarr(path, array)


def _with_tensorstore(path: Path, array: str) -> NDArray[Any]:
    store = {"driver": "file", "path": str(path / array)}
    return tensorstore.open({"driver": "zarr3", "kvstore": store}).result().read().result()


def _with_xarray(path: Path, array: str) -> NDArray[Any]:
    import xarray

    folder, _, name = array.rpartition("/")
    opened = xarray.open_zarr(path / folder, consolidated=False, chunks=None)
    assert opened[name].dims == ARRAYS[array]
    return opened[name].to_numpy()


def _with_dask(path: Path, array: str) -> NDArray[Any]:
    opened = zarr.open_array(path / array, mode="r")
    lazy = dask.array.from_zarr(opened, chunks=opened.shards)
    assert lazy.numblocks[0] == opened.shape[0] // opened.shards[0]
    return lazy.compute(scheduler="synchronous")


ENGINES: dict[str, Callable[[Path, str], NDArray[Any]]] = {
    "zarr-python": _with_zarr,
    "zarrs": _with_zarrs,
    "tensorstore": _with_tensorstore,
    "xarray": _with_xarray,
    "dask": _with_dask,
}


def _rows_by_text(small: SmallStore, array: str, whole: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Cut a whole array as DESIGN section 3 says: with the segment tables alone."""
    # Imported here, by the one test process that needs it: it complains when objects that refer to it are
    # left alone until the process ends (see tests/conftest.py).
    import duckdb

    folder = small.store.root / "segments" / "*.parquet"
    table = duckdb.sql(f"select text, n_tokens, token_start, text_row from '{folder}'").fetchall()
    if ARRAYS[array][0] == "text":
        return {text: whole[row] for text, _, _, row in table}
    return {text: whole[start : start + n] for text, n, start, _ in table}


@pytest.mark.few(16)
@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [("none", "float16"), ("zstd", "bfloat16")])
def test_every_engine_gives_every_row(
    shared: Shared, kind: tuple[Any, str], engine: str, array: str
) -> None:
    small = shared(*kind)
    whole = ENGINES[engine](small.store.zarr_path, array)
    found = _rows_by_text(small, array, whole)
    assert set(found) == set(small.texts)
    for text, rows in small.rows[array].items():
        assert found[text].dtype == rows.dtype
        assert np.array_equal(found[text], rows)


def test_bfloat16_is_marked_for_those_who_know(shared: Shared) -> None:
    small = shared("none", "bfloat16")
    opened = zarr.open_array(small.store.zarr_path / "hidden" / "1", mode="r")
    assert opened.dtype == np.uint16
    assert opened.attrs["logical_dtype"] == "bfloat16"


def test_one_shard_is_one_segment_of_every_array(small: SmallStore) -> None:
    for array, dimensions in ARRAYS.items():
        opened = zarr.open_array(small.store.zarr_path / array, mode="r")
        rows = AXES.segment_tokens if dimensions[0] == "token" else AXES.segment_texts
        assert opened.shards is not None
        assert opened.shards[0] == rows
        assert opened.shape[0] == rows * len(small.store.segments())
        assert opened.metadata.dimension_names == dimensions  # type: ignore[union-attr]


def test_the_group_holds_only_zarr_files(small: SmallStore) -> None:
    with writing(small.store):
        write_projection(small.store, 1, np.eye(8, dtype=np.float32), np.zeros(8, np.float32))
    for path in small.store.zarr_path.rglob("*"):
        if path.is_file():
            parts = path.relative_to(small.store.zarr_path).parts
            assert path.name == "zarr.json" or "c" in parts, path
    members = dict(zarr.open_group(small.store.zarr_path, mode="r").members(max_depth=None))
    arrays = {n for n, m in members.items() if isinstance(m, zarr.Array)}
    projections = {"projections/o_proj/1", "projections/o_proj_bias/1"}
    assert arrays == {*ARRAYS, "text_of_token"} | projections


def test_slots_that_hold_no_text_read_as_no_number_and_have_no_chunk(small: SmallStore) -> None:
    last = small.store.segments()[-1]
    used = small.store.segment(last).n_tokens
    whole = _with_zarr(small.store.zarr_path, "hidden/1")
    assert used < AXES.segment_tokens
    assert np.isnan(whole[last * AXES.segment_tokens + used :]).all()
    n_chunks = -(-used // 8)
    index = 16 * (AXES.segment_tokens // 8) + 4
    size = small.store.shard_path(last, "hidden/1").stat().st_size
    assert size == n_chunks * (8 * 16 + 4) + index


def test_dropped_and_missing_cells_read_as_fill_so_that_arrays_stay_aligned(
    small: SmallStore,
) -> None:
    small.store.shard_path(0, "hidden/1").unlink()
    whole = _with_tensorstore(small.store.zarr_path, "hidden/1")
    assert np.isnan(whole[: AXES.segment_tokens]).all()
    used = small.store.segment(1).n_tokens
    assert np.isfinite(whole[AXES.segment_tokens :][:used]).all()
