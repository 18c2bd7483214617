import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from permafrost.storage.durable import json_bytes, read_json
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.projections import (
    drop_projection,
    has_projection,
    read_projection,
    renew_metadata,
    stored_projections,
    write_projection,
)
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import SilentProgress
from tests.storage.small_store import flip, new_store

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(6, 8)).astype(np.float32)
BIAS = RNG.normal(size=8).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return new_store(tmp_path).store


def test_a_projection_reads_back_the_same_with_and_without_bias(store: FeatureStore) -> None:
    write_projection(store, 1, WEIGHT, BIAS)
    write_projection(store, 12, WEIGHT.T[:, :6], None)
    weight, bias = read_projection(store, 1)
    assert np.array_equal(weight, WEIGHT)
    assert bias is not None
    assert np.array_equal(bias, BIAS)
    weight, bias = read_projection(store, 12)
    assert np.array_equal(weight, WEIGHT.T[:, :6])
    assert bias is None
    assert stored_projections(store) == [1, 12]


def test_zarr_reads_a_projection_by_name(store: FeatureStore) -> None:
    write_projection(store, 3, WEIGHT, BIAS)
    group = zarr.open_group(store.zarr_path, mode="r")
    found = group["projections/o_proj/3"]
    assert isinstance(found, zarr.Array)
    assert np.array_equal(found[...], WEIGHT)
    assert found.metadata.dimension_names == ("d_heads", "d_model")  # type: ignore[union-attr]
    assert np.array_equal(group["projections/o_proj_bias/3"][...], BIAS)  # type: ignore[index]


def test_missing_numbers_of_a_projection_are_no_numbers(store: FeatureStore) -> None:
    write_projection(store, 1, WEIGHT, BIAS)
    for name in ("o_proj/1", "o_proj_bias/1"):
        shutil.rmtree(store.zarr_path / "projections" / name / "c")
        found = zarr.open_array(store.zarr_path / "projections" / name, mode="r")
        assert np.isnan(np.asarray(found[...])).all()


def test_only_a_weight_says_whether_it_has_a_bias(store: FeatureStore) -> None:
    write_projection(store, 2, WEIGHT, None)
    root = store.zarr_path / "projections"
    assert not (root / "o_proj_bias").exists()
    write_projection(store, 1, WEIGHT, BIAS)
    attributes = {
        name: read_json(root / name / "zarr.json")["attributes"]
        for name in ("o_proj/1", "o_proj_bias/1", "o_proj/2")
    }
    assert attributes["o_proj/1"]["has_bias"]
    assert not attributes["o_proj/2"]["has_bias"]
    assert "has_bias" not in attributes["o_proj_bias/1"]
    del attributes["o_proj/2"]["has_bias"]
    path = root / "o_proj" / "2" / "zarr.json"
    path.write_bytes(json_bytes({**read_json(path), "attributes": attributes["o_proj/2"]}))
    with pytest.raises(CorruptDataError, match="has_bias"):
        read_projection(store, 2)


def test_metadata_of_an_earlier_version_are_read_and_renewed(tmp_path: Path) -> None:
    (old,) = (Path(__file__).parents[2] / "formats" / "v1" / "features").glob("efe5*")
    shutil.copytree(old, tmp_path / "features" / old.name)
    store = FeatureStore.open(tmp_path / "features" / old.name)
    weight, bias = read_projection(store, 1)
    assert bias is not None
    renew_metadata(store)
    for name in ("o_proj/1", "o_proj_bias/1"):
        found = zarr.open_array(store.zarr_path / "projections" / name, mode="r")
        assert np.isnan(found.fill_value)
    assert verify(store, SilentProgress()) == []
    for before, now in zip((weight, bias), read_projection(store, 1), strict=True):
        assert np.array_equal(before, now)  # type: ignore[arg-type]


def test_a_projection_that_is_not_stored_is_refused_with_what_to_do(store: FeatureStore) -> None:
    assert not has_projection(store, 2)
    with pytest.raises(NotFoundError, match="capture attention_rows=2"):
        read_projection(store, 2)


def test_a_dropped_projection_is_missing_again_and_can_be_written_again(
    store: FeatureStore,
) -> None:
    write_projection(store, 1, WEIGHT, None)
    write_projection(store, 2, WEIGHT, None)
    drop_projection(store, 1)
    assert stored_projections(store) == [2]
    write_projection(store, 1, WEIGHT + 1, BIAS)
    assert np.array_equal(read_projection(store, 1)[0], WEIGHT + 1)


@pytest.mark.parametrize(
    "name",
    ["o_proj/1/c/0/0", "o_proj/1/zarr.json", "o_proj_bias/1/c/0", "o_proj_bias/1/zarr.json"],
)
@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_file_of_a_projection_is_never_read_as_data(
    store: FeatureStore, name: str, how: str
) -> None:
    write_projection(store, 1, WEIGHT, BIAS)
    path = store.zarr_path / "projections" / name
    content = path.read_bytes()
    match how:
        case "flip":
            flip(path, len(content) // 3, mask=0x01)
        case "remove":
            path.unlink()
        case _:
            path.write_bytes(content[: len(content) // 2] if how == "truncate" else b"")
    if (name, how) == ("o_proj/1/zarr.json", "remove"):
        assert not has_projection(store, 1)  # the metadata of the weight says that all is there
        return
    with pytest.raises(CorruptDataError, match=r"projections/o_proj.* is damaged"):
        read_projection(store, 1)
