import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.features.receipts import (
    Receipt,
    Statistics,
    committed_arrays,
    measure,
    read_receipt,
    receipt_path,
    revoke_receipt,
    write_receipt,
)
from permafrost.storage.sealed import sealed_bytes
from tests.storage.small_store import flip

VALUES = hnp.arrays(np.float32, st.integers(0, 12), elements=st.floats(-1000, 1000, width=32))


def _close(found: Statistics, values: np.ndarray) -> None:
    assert found.count == len(values)
    assert found.mean == pytest.approx(values.mean(dtype=np.float64), abs=1e-6)
    assert found.variance == pytest.approx(values.var(dtype=np.float64), rel=1e-3, abs=1e-4)
    assert (found.min, found.max) == (values.min(), values.max())


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_merged_statistics_are_those_of_the_concatenation(parts: list[np.ndarray]) -> None:
    whole = np.concatenate(parts)
    merged = Statistics()
    for part in parts:
        merged = merged.merged(measure(part))
    if len(whole):
        _close(merged, whole)
    else:
        assert merged == Statistics()


@given(VALUES, VALUES)
def test_merging_does_not_depend_on_the_order(a: np.ndarray, b: np.ndarray) -> None:
    left, right = measure(a).merged(measure(b)), measure(b).merged(measure(a))
    assert left.mean == pytest.approx(right.mean, abs=1e-9)
    assert left.variance == pytest.approx(right.variance, abs=1e-6)
    assert (left.count, left.min, left.max) == (right.count, right.min, right.max)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "bool"])
def test_statistics_of_any_dtype_and_shape_equal_numpy(dtype: str) -> None:
    values = np.random.default_rng(0).normal(scale=50, size=(7, 5)).astype(dtype)
    _close(measure(values), values.astype(np.float64).reshape(-1))


def test_values_that_are_not_finite_are_counted_apart() -> None:
    found = measure(np.array([[1.0, np.nan], [np.inf, 3.0]], np.float32))
    assert (found.count, found.nonfinite) == (2, 2)
    assert (found.mean, found.variance, found.min, found.max) == (2.0, 1.0, 1.0, 3.0)
    assert measure(np.full(3, np.nan)).nonfinite == 3


RECEIPT = Receipt(
    store_id="s" * 32,
    segment=4,
    segment_sha256="f" * 64,
    array="hidden/1",
    n_texts=2,
    n_rows=9,
    shard="features.zarr/hidden/1/c/4/0",
    shard_bytes=100,
    shard_crc32c=1,
    chunk_rows=8,
    chunk_crc32c=(5, 6),
    statistics=Statistics(count=9, mean=0.1, variance=2.5, min=-1, max=3),
    provenance={"torch": "2.13"},
)


def test_a_receipt_reads_back_the_same(tmp_path: Path) -> None:
    write_receipt(tmp_path, RECEIPT)
    assert read_receipt(tmp_path, 4, "hidden/1") == RECEIPT
    assert receipt_path(tmp_path, 4, "hidden/1") == tmp_path / "receipts/000004/hidden/1.json"
    assert committed_arrays(tmp_path, 4) == {"hidden/1"}
    assert committed_arrays(tmp_path, 5) == frozenset()


def test_every_byte_of_a_receipt_is_guarded(tmp_path: Path) -> None:
    write_receipt(tmp_path, RECEIPT)
    path = receipt_path(tmp_path, 4, "hidden/1")
    whole = path.read_bytes()
    for at in range(len(whole)):
        flip(path, at, mask=0x01)
        try:
            found = read_receipt(tmp_path, 4, "hidden/1")
        except CorruptDataError as error:
            assert "1.json" in str(error)  # noqa: PT017
        else:
            assert found == RECEIPT, at  # white space
        path.write_bytes(whole)


def test_a_receipt_of_another_format_is_not_damaged(tmp_path: Path) -> None:
    path = receipt_path(tmp_path, 4, "hidden/1")
    fields = RECEIPT.model_dump(mode="json") | {"format_version": 2, "a field of it": 1}
    path.parent.mkdir(parents=True)
    path.write_bytes(sealed_bytes(fields))
    told = r"1\.json has receipt format 2, this program reads 1; use a version of permafrost that"
    with pytest.raises(InputError, match=told):
        read_receipt(tmp_path, 4, "hidden/1")


@pytest.mark.parametrize("content", ["[]", "{}", "null", "3", '{"checksum": 1}'])
def test_json_that_is_no_receipt_is_corrupt(tmp_path: Path, content: str) -> None:
    path = receipt_path(tmp_path, 4, "hidden/1")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(CorruptDataError, match=r"receipt .* is damaged"):
        read_receipt(tmp_path, 4, "hidden/1")


def test_a_receipt_of_another_cell_is_refused_with_both_names(tmp_path: Path) -> None:
    write_receipt(tmp_path, RECEIPT)
    other = receipt_path(tmp_path, 5, "hidden/1")
    other.parent.mkdir(parents=True)
    other.write_bytes(receipt_path(tmp_path, 4, "hidden/1").read_bytes())
    with pytest.raises(CorruptDataError, match="segment 4, expected hidden/1 in segment 5"):
        read_receipt(tmp_path, 5, "hidden/1")


def test_a_revoked_receipt_is_gone_and_revoking_twice_is_fine(tmp_path: Path) -> None:
    write_receipt(tmp_path, RECEIPT)
    revoke_receipt(tmp_path, 4, "hidden/1")
    revoke_receipt(tmp_path, 4, "hidden/1")
    assert committed_arrays(tmp_path, 4) == frozenset()


def test_drafts_are_not_receipts(tmp_path: Path) -> None:
    write_receipt(tmp_path, RECEIPT)
    draft = receipt_path(tmp_path, 4, "hidden/1").with_name(".draft-2.json")
    draft.write_text(json.dumps({}))
    assert committed_arrays(tmp_path, 4) == {"hidden/1"}
