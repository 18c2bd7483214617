"""Statistics of rows against the same figures computed from the rows themselves."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from permafrost.stages.embed.config import WhiteningConfig
from permafrost.stages.embed.whitening import fit_whitening
from permafrost.stages.statistics import Moments, moments_of, statistics_of, whitening
from permafrost.stages.statistics.summary import ArrayStatistics
from permafrost.storage.errors import InputError

ROWS = np.random.default_rng(0).normal(1, [3, 1, 0.5, 0.1], (40, 4)).astype(np.float32)


def found(rows: NDArray[np.floating]) -> ArrayStatistics:
    return statistics_of(moments_of(rows))


def test_figures_are_those_of_the_rows() -> None:
    s, norms = found(ROWS), np.linalg.norm(ROWS, axis=1)
    assert (s.n_rows, s.n_zero, s.n_not_finite) == (40, 0, 0)
    assert s.norm == pytest.approx(norms.mean())
    assert s.norm_deviation == pytest.approx(norms.std(), rel=1e-5)
    unit = ROWS / norms[:, None]
    cosines = [float(unit[i] @ unit[j]) for i, j in itertools.combinations(range(40), 2)]
    assert s.cosine == pytest.approx(np.mean(cosines), rel=1e-5)
    shares = np.sort(np.linalg.svd(ROWS - ROWS.mean(0))[1] ** 2)[::-1]
    shares /= shares.sum()
    assert s.first_share == pytest.approx(shares[0], rel=1e-5)
    assert s.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-5)
    assert s.components_90 == 1 + int((np.cumsum(shares) < 0.9).sum())
    at = np.unravel_index(np.abs(ROWS).argmax(), ROWS.shape)
    assert (s.largest, s.largest_column) == (pytest.approx(abs(ROWS[at])), at[1])


@given(st.lists(st.integers(0, 40), max_size=4))
def test_sums_of_parts_are_those_of_the_whole(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), 40]
    parts = [moments_of(ROWS[a:b]) for a, b in itertools.pairwise(bounds)]
    total, whole = parts[0], moments_of(ROWS)
    for part in parts[1:]:
        total = total + part
    for name, value in vars(whole).items():
        np.testing.assert_allclose(getattr(total, name), value, rtol=1e-12)


def test_rows_that_are_not_finite_are_counted_and_left_out() -> None:
    damaged = ROWS.astype(np.float16)
    damaged[3, 1], damaged[7] = np.nan, np.inf
    clean = np.delete(damaged, [3, 7], axis=0)
    s = found(damaged)
    assert s.n_not_finite == 2
    assert vars(s) | {"n_not_finite": 0} == vars(found(clean))


def test_a_row_of_zeros_has_no_direction() -> None:
    s = found(np.vstack([ROWS, np.zeros((1, 4), np.float32)]))
    assert s.n_zero == 1
    assert s.cosine == pytest.approx(found(ROWS).cosine)


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        (np.zeros((0, 4)), {"norm", "cosine", "effective_rank", "largest", "components_90"}),
        (np.full((3, 4), np.nan), {"norm", "cosine", "effective_rank", "largest"}),
        (np.ones((1, 4)), {"cosine", "effective_rank", "first_share"}),
        (np.full((5, 4), 7e4), {"effective_rank", "first_share"}),
    ],
)
def test_what_needs_more_rows_is_none(rows: NDArray[np.float64], missing: set[str]) -> None:
    assert missing <= {name for name, value in vars(found(rows)).items() if value is None}


def test_whitening_is_that_of_the_rows() -> None:
    config = WhiteningConfig(n_components=3)
    ours, whole = whitening(moments_of(ROWS), config), fit_whitening(config, ROWS)
    np.testing.assert_allclose(ours.mean, whole.mean, rtol=1e-6)
    np.testing.assert_allclose(np.cov(ours.apply(ROWS).T, bias=True), np.eye(3), atol=1e-4)
    np.testing.assert_allclose(np.abs(ours.matrix), np.abs(whole.matrix), rtol=1e-4)


def test_nothing_cannot_be_whitened() -> None:
    nothing: Moments = moments_of(np.zeros((0, 4)))
    with pytest.raises(InputError, match="no row whose numbers are all finite"):
        whitening(nothing, WhiteningConfig())
    with pytest.raises(InputError, match="5 components was asked for, but 40 rows"):
        whitening(moments_of(ROWS), WhiteningConfig(n_components=5))
