import numpy as np
import pytest

from permafrost.storage.features.layout import widen
from tests.storage.small_store import as_float32

EVERY_PATTERN = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_float16_becomes_the_float32_of_the_same_value() -> None:
    halves = EVERY_PATTERN.view(np.float16)
    finite = halves[np.isfinite(halves)]
    # As bits, so that -0.0 and subnormal numbers count; alone, since other values may choose the way.
    for values in (finite, halves[~np.isnan(halves)]):
        expected = values.astype(np.float32)
        assert np.array_equal(widen(values, "float16").view(np.uint32), expected.view(np.uint32))
    assert np.isnan(widen(halves[np.isnan(halves)], "float16")).all()


def test_every_bfloat16_becomes_the_float32_with_its_upper_half() -> None:
    found = widen(EVERY_PATTERN, "bfloat16")
    expected = as_float32(EVERY_PATTERN, "bfloat16")
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(0, 3), (4, 3), (4,)])
def test_shape_is_kept_and_the_stored_rows_are_not_changed(
    dtype: str, shape: tuple[int, ...]
) -> None:
    stored = np.full(shape, 1.5, np.float16 if dtype == "float16" else np.float32)
    rows = (stored.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else stored
    before = rows.copy()
    found = widen(rows, dtype)
    assert found.dtype == np.float32
    assert found.shape == shape
    assert (found == 1.5).all()
    assert np.array_equal(rows, before)


def test_rows_that_are_not_contiguous_are_widened_too() -> None:
    rows = np.arange(24, dtype=np.float16).reshape(4, 6)[:, ::2]
    assert np.array_equal(widen(rows, "float16"), rows.astype(np.float32))
