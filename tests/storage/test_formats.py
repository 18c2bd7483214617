"""Bytes written by format 1 must stay readable, value for value.

Run this file as a script to write tests/formats/v1 again: only for a new format, never to make it pass.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.features.projections import read_projection, write_projection
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import IDENTITY, as_float32, new_store

HOME = Path(__file__).parents[1] / "formats" / "v1"
TEXTS = ["Größe", "a longer text", "", "数", "more", "and more"]
LENGTHS = [5, 30, 1, 3, 32, 28]
BITS = IDENTITY.model_copy(update={"storage_dtype": "bfloat16"})
ARRAYS = ["hidden/1", "hidden/final", "values/2", "pooled/hidden_mean/2"]
SPEC = ArtifactSpec(
    stage="fit", config={"lr": 0.5, "head": {"kind": "mean"}}, inputs=("corpus/" + "0" * 32,)
)


def expected(array: str, text: int, n_rows: int, width: int) -> NDArray[np.float32]:
    """Multiples of 1/4 up to 32, which every dtype holds exactly; other ones for every array."""
    start = 7 * text + 31 * ARRAYS.index(array)
    numbers = (start + np.arange(n_rows * width)) % 129 - 64
    return (numbers / 4).astype(np.float32).reshape(n_rows, width)


def regenerate() -> None:
    """Write the folder anew."""
    shutil.rmtree(HOME, ignore_errors=True)
    for identity, codec in ((IDENTITY, "none"), (BITS, "zstd")):
        small = new_store(HOME, identity=identity, codec=codec)  # type: ignore[arg-type]
        for array in ARRAYS:
            spec = small.store.spec(array)
            assert spec.width is not None
            known = small.rows.setdefault(array, {})
            for i, (text, n) in enumerate(zip(TEXTS, LENGTHS, strict=True)):
                rows = expected(array, i, n if spec.axis == "token" else 1, spec.width)
                bits = (rows.view(np.uint32) >> 16).astype(np.uint16)
                stored = bits if spec.dtype == "bfloat16" else rows.astype(spec.storage)
                known[text] = stored if spec.axis == "token" else stored[0]
        small.add(TEXTS, LENGTHS, ARRAYS, whole_span=True)
        write_projection(
            small.store, 1, np.arange(32, dtype=np.float32).reshape(4, 8), np.ones(8, np.float32)
        )
    with ArtifactStore(HOME).publishing(SPEC, {"device": "cpu"}) as draft:
        (draft.folder / "metrics.json").write_text(json.dumps({"dev": 0.75}))
        draft.summary["dev"] = 0.75
    for lock in HOME.rglob("writer.lock"):
        lock.unlink()  # names a process and a machine


def _stores() -> list[FeatureStore]:
    return [FeatureStore.open(HOME / "features" / i.store_id) for i in (IDENTITY, BITS)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("array", ARRAYS)
def test_every_value_of_format_1_is_still_read(which: int, array: str) -> None:
    store = _stores()[which]
    spec = store.spec(array)
    reader = open_reader(store, array, [text_digest(t) for t in TEXTS], budget_bytes=1 << 20)
    seen = 0
    for indices, rows in reader.in_order(2):
        for i, found in zip(indices.tolist(), rows, strict=True):
            n_rows = LENGTHS[i] if spec.axis == "token" else 1
            assert np.array_equal(found, expected(array, i, n_rows, spec.width or 1))
            seen += 1
    assert seen == len(TEXTS)


def test_format_1_still_verifies_and_has_the_same_identity() -> None:
    stores = all_stores(HOME)
    assert {s.store_id for s in stores} == {IDENTITY.store_id, BITS.store_id}
    for store in stores:
        assert verify(store, SilentProgress()) == []
        assert store.record.format_version == 1


def test_zarr_itself_reads_format_1() -> None:
    store = _stores()[1]
    whole = np.asarray(zarr.open_array(store.zarr_path / "hidden" / "final", mode="r")[...])
    where = store.locate([text_digest(TEXTS[1])])
    start, n = int(where.token_start[0]), int(where.n_tokens[0])
    found = as_float32(whole[start : start + n], "bfloat16")
    assert np.array_equal(found, expected("hidden/final", 1, 30, 8))


def test_the_projection_of_format_1_is_still_read() -> None:
    for store in _stores():
        weight, bias = read_projection(store, 1)
        assert weight.reshape(-1).tolist() == list(range(32))
        assert bias is not None
        assert bias.tolist() == [1.0] * 8


def test_an_old_store_still_grows(tmp_path: Path) -> None:
    shutil.copytree(HOME, tmp_path, dirs_exist_ok=True)
    small = new_store(tmp_path)
    small.add(["a new text"], [4], ARRAYS)
    assert verify(small.store, SilentProgress()) == []
    with writing(small.store) as writer:
        writer.declare(["hidden/2"])
    assert len(small.store.segments()) == len(_stores()[0].segments()) + 1


def test_the_artifact_of_format_1_is_still_read() -> None:
    store, ref = ArtifactStore(HOME), SPEC.ref_of(1)
    assert store.is_done(ref)
    assert json.loads((store.open(ref) / "metrics.json").read_text()) == {"dev": 0.75}
    assert store.manifest(ref).summary == {"dev": 0.75}
    assert not store.is_done(SPEC.ref), "keys of today are others"


def test_the_committed_bytes_are_few() -> None:
    assert sum(p.stat().st_size for p in HOME.rglob("*") if p.is_file()) < 60_000


if __name__ == "__main__":
    regenerate()
