"""Other tools are not told numbers that nobody computed: fills, the texts of tokens, and what is complete."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from permafrost.storage.durable import json_bytes
from permafrost.storage.features.layout import ZARR_GROUP, earlier_metadata, in_order, widen
from permafrost.storage.features.projections import write_projection
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from tests.storage.small_store import AXES, SmallStore, filled_store

SLOTS = AXES.segment_tokens


@pytest.fixture(params=["float16", "bfloat16", "float32"])
def half(tmp_path: Path, request: pytest.FixtureRequest) -> SmallStore:
    """Several segments: `hidden/1` is everywhere, `hidden/2` was never extracted for the first."""
    made = filled_store(tmp_path, 8, dtype=request.param)
    rng = np.random.default_rng(3)
    with writing(made.store) as writer:
        writer.declare(["hidden/2"])
        for number in made.store.segments()[1:]:
            made.fill(writer, number, ["hidden/2"], rng)
    return made


def numbers(small: SmallStore, rows: Any) -> Any:
    """As float32; bfloat16 is on disk as its bits."""
    return widen(np.ascontiguousarray(rows), small.store.record.identity.storage_dtype)


def tables(small: SmallStore) -> list[dict[str, Any]]:
    return pq.read_table(small.store.root / "segments").to_pylist()


def test_what_was_never_extracted_is_not_a_number_for_zarr(half: SmallStore) -> None:
    group: Any = zarr.open_group(half.store.zarr_path, mode="r")
    later, everywhere = (numbers(half, group[name][...]) for name in ("hidden/2", "hidden/1"))
    assert len(half.store.segments()) > 1
    assert np.isnan(later[:SLOTS]).all()
    texts = np.asarray(group["text_of_token"])
    assert np.isnan(everywhere[texts < 0]).all()
    assert np.isfinite(everywhere[texts >= 0]).all()
    assert (np.asarray(group["token_ids"])[texts < 0] == -1).all()
    assert not np.asarray(group["span"])[texts < 0].any()
    complete = group.attrs["complete"]
    for name, whole in (("hidden/2", later), ("hidden/1", everywhere)):
        mask = np.repeat(complete[name], SLOTS) & (texts >= 0)
        assert np.isfinite(whole[mask]).all()
        assert np.isnan(whole[~mask]).all()
    assert complete["hidden/2"] == [s > 0 for s in half.store.segments()]


def test_every_token_has_the_row_of_its_text(half: SmallStore) -> None:
    texts: Any = zarr.open_array(half.store.zarr_path / "text_of_token", mode="r")[...]
    expected = np.full(len(texts), -1)
    for row in tables(half):
        expected[row["token_start"] : row["token_start"] + row["n_tokens"]] = row["text_row"]
    assert texts.dtype == np.int32
    assert texts.tolist() == expected.tolist()


def test_xarray_opens_a_half_extracted_store_without_a_warning(half: SmallStore) -> None:
    import xarray

    with writing(half.store):
        write_projection(half.store, 1, np.eye(8, dtype=np.float32), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        root = xarray.open_zarr(half.store.zarr_path, chunks=None)
        hidden = xarray.open_zarr(half.store.zarr_path, group="hidden", chunks=None)
        alone = xarray.open_zarr(half.store.zarr_path / "hidden", chunks=None)
        o_proj = xarray.open_zarr(half.store.zarr_path, group="projections/o_proj", chunks=None)
    assert set(root.data_vars) == {"token_ids", "span", "text_of_token"}
    assert list(hidden.data_vars) == list(alone.data_vars) == ["1", "2"]
    assert hidden["2"].dims == ("token", "d_model")
    assert np.isnan(numbers(half, hidden["2"].to_numpy())[:SLOTS]).all()
    assert (o_proj["1"].to_numpy() == np.eye(8)).all()
    identity = half.store.record.identity
    assert root.attrs["weights_digest"] == identity.weights_digest
    assert root.attrs["recipe"] == identity.recipe
    assert root.attrs["layer_semantics"] == identity.layer_semantics
    assert root.attrs["backbone"] == half.store.record.backbone
    assert {"token", "text", "d_model"} <= set(root.attrs["axes"])
    assert root.attrs["segment_tokens"] == SLOTS


def test_names_of_layers_are_listed_by_their_numbers(tmp_path: Path) -> None:
    made = filled_store(tmp_path, 2)
    with writing(made.store) as writer:
        writer.declare(["hidden/10", "hidden/2"])
    hidden = zarr.open_group(made.store.zarr_path, path="hidden", mode="r")
    assert [name for name, _ in hidden.members()] == ["1", "2", "10"]
    names = ["hidden/final", "hidden/10", "hidden/9", "span", "pooled/x_mean/11", "pooled/x_mean/2"]
    assert in_order(names) == [
        "hidden/9", "hidden/10", "hidden/final", "pooled/x_mean/2", "pooled/x_mean/11", "span",
    ]  # fmt: skip


def as_earlier(store: FeatureStore) -> None:
    """Take back from a store what earlier versions did not write."""
    for path in store.zarr_path.rglob("zarr.json"):
        found = json.loads(path.read_text())
        is_group = found["node_type"] == "group"
        path.write_bytes(json_bytes(ZARR_GROUP if is_group else earlier_metadata(found)))
    for path in [
        *store.zarr_path.glob("text_of_token/**/*"),
        *store.root.glob("receipts/*/text_of_token.json"),
    ]:
        if path.is_file():
            path.unlink()
    store.forget()


def test_an_earlier_store_is_right_as_it_is_and_gets_all_this_when_it_is_written(
    tmp_path: Path,
) -> None:
    made = filled_store(tmp_path, 8)
    as_earlier(made.store)
    assert verify(made.store, SilentProgress()) == []
    found = made.store.zarr_path.glob("hidden/*/c/*/*")
    shards = {p: p.read_bytes() for p in found}
    assert shards
    with writing(made.store) as writer:
        writer.declare(["hidden/2"])
    group: Any = zarr.open_group(made.store.zarr_path, mode="r")
    assert np.isnan(np.asarray(group["hidden/2"])).all()
    assert np.asarray(group["text_of_token"]).max() == max(row["text_row"] for row in tables(made))
    assert verify(made.store, SilentProgress()) == []
    assert {p: p.read_bytes() for p in shards} == shards


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"complete": {', b'"complete": {"hidden/2": [true], ', "hidden/2 of segment 0 is complete"),
        (b'"weights_digest": "weights"', b'"weights_digest": "weighty"', "other attributes"),
        (b'"dimension_names"', b'"dimension_nameS"', "does not describe the arrays"),
        (b'"must_understand": false', b'"must_understand": true', "does not describe the arrays"),
    ],
)  # fmt: skip
def test_a_group_that_says_something_else_is_found(
    tmp_path: Path, old: bytes, new: bytes, says: str
) -> None:
    made = filled_store(tmp_path, 2)
    path = made.store.zarr_path / "zarr.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new, 1))
    assert path.read_bytes() != content
    (damage,) = verify(made.store, SilentProgress())
    assert says in damage.problem
    with writing(made.store):
        pass
    assert path.read_bytes() == content
