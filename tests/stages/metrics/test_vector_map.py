"""Maps of vectors against scikit-learn's PCA, and their file."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.decomposition import PCA

from permafrost.stages.metrics.vector_map import (
    VECTOR_MAP,
    MapNames,
    principal_components,
    read_vector_map,
    spread_evenly,
    vector_map,
)
from permafrost.storage.errors import CorruptDataError


@pytest.mark.parametrize("shape", [(40, 7), (12, 300), (3, 2)])
def test_components_are_those_of_scikit_learn_but_for_the_sign(shape: tuple[int, int]):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=shape) * np.linspace(3, 0.5, shape[1]) + 5).astype(np.float32)
    shown, shares = principal_components(vectors)
    reference = PCA(2, svd_solver="full").fit(vectors.astype(np.float64))
    expected = reference.transform(vectors.astype(np.float64))
    np.testing.assert_allclose(np.abs(shown), np.abs(expected), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(shares, reference.explained_variance_ratio_, rtol=1e-9)
    signs = np.sign(shown) * np.sign(expected)
    assert (signs == signs[0]).all(), "a whole axis is turned, or none of it"
    assert all(shown[np.abs(shown[:, axis]).argmax(), axis] > 0 for axis in (0, 1))


def test_vectors_on_a_line_have_all_their_variance_on_the_first_axis():
    places = np.array([-2.0, 0.0, 1.0, 5.0])
    shown, shares = principal_components(places[:, None] * np.array([[0.6, 0.8, 0.0]]) + 3)
    np.testing.assert_allclose(shown[:, 0], places - places.mean(), atol=1e-12)
    np.testing.assert_allclose(shown[:, 1], 0, atol=1e-6)
    assert shares == pytest.approx((1.0, 0.0))


@pytest.mark.parametrize("vectors", [np.ones((5, 3)), np.ones((1, 3))])
def test_vectors_that_do_not_differ_lie_on_one_point(vectors: np.ndarray):
    shown, shares = principal_components(vectors)
    assert shown.tolist() == [[0.0, 0.0]] * len(vectors)
    assert shares == (0.0, 0.0)


def test_one_column_is_enough():
    shown, shares = principal_components(np.array([[0.0], [4.0]]))
    np.testing.assert_allclose(np.abs(shown), [[2, 0], [2, 0]], atol=1e-12)
    assert shares == pytest.approx((1.0, 0.0))


def test_places_are_spread_from_first_to_last():
    assert spread_evenly(21, 5).tolist() == [0, 5, 10, 15, 20]
    assert spread_evenly(3, 5).tolist() == [0, 1, 2]
    assert spread_evenly(3, 0).tolist() == []


def test_a_map_reads_back(tmp_path: Path):
    vectors = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    texts, classes = np.arange(10, 16), np.array([0, 1, 2, 0, 1, 2])
    table = vector_map(texts, classes, vectors)
    assert table is not None
    pq.write_table(table, tmp_path / VECTOR_MAP)
    found, (shown, shares) = read_vector_map(tmp_path), principal_components(vectors)
    assert found is not None
    assert found.texts.tolist() == texts.tolist()
    assert found.classes.tolist() == classes.tolist()
    assert found.points.tolist() == shown.astype(np.float32).tolist()
    assert found.shares == shares


def test_names_come_back_with_their_map(tmp_path: Path):
    names = MapNames(("cold", "warm"), ("snow", "sun"))
    table = vector_map(np.arange(2), np.arange(2), np.eye(2), names)
    assert table is not None
    pq.write_table(table, tmp_path / VECTOR_MAP)
    found = read_vector_map(tmp_path)
    assert found is not None
    assert found.names == names


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_vectors_are_all_at_the_origin(dtype: type):
    vectors = np.full((7, 3), 0.1, dtype)
    shown, shares = principal_components(vectors)
    assert not shown.any()
    assert shares == (0.0, 0.0)


def test_vectors_that_are_not_finite_have_no_map():
    vectors = np.array([[0.0, 1.0], [np.nan, 1.0]])
    assert vector_map(np.arange(2), np.zeros(2, np.int64), vectors) is None


def test_no_file_is_no_map_and_a_broken_one_is_refused(tmp_path: Path):
    assert read_vector_map(tmp_path) is None
    (tmp_path / VECTOR_MAP).write_bytes(b"PAR1")
    with pytest.raises(CorruptDataError, match=r"map\.parquet holds no map.*score it again"):
        read_vector_map(tmp_path)
    table = vector_map(np.arange(2), np.zeros(2, np.int64), np.eye(2))
    assert table is not None
    pq.write_table(table.replace_schema_metadata(None), tmp_path / VECTOR_MAP)
    with pytest.raises(CorruptDataError, match="shares"):
        read_vector_map(tmp_path)
