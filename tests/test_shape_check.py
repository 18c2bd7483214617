"""In tests, arguments and results of our functions are what their signatures say."""

import numpy as np
import pytest
from jaxtyping import Float32, TypeCheckError, jaxtyped

from permafrost.storage.ragged import ranges
from tests.shape_check import check


def test_a_function_of_ours_refuses_what_its_signature_does_not_take() -> None:
    one = np.ones(2, dtype=np.int64)
    assert len(ranges(one, one)) == 2
    for _ in range(2):
        with pytest.raises(TypeCheckError, match=r"the parameters of permafrost\.storage\.ragged"):
            ranges(one.astype(np.float64), one)


def test_shapes_are_held_against_each_other_in_arguments_and_results() -> None:
    @jaxtyped(typechecker=check)
    def halved(a: Float32[np.ndarray, "n d"], w: float) -> Float32[np.ndarray, "n d"]:
        return a[:, : int(w)]

    a = np.zeros((2, 3), dtype=np.float32)
    for _ in range(2):
        assert halved(a, 3).shape == (2, 3)
        with pytest.raises(TypeCheckError, match="the return value"):
            halved(a, 1)
        with pytest.raises(TypeCheckError, match="the parameters"):
            halved(a[0], 3)
