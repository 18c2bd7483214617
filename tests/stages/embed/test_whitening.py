from functools import partial

import numpy as np
import pytest

from permafrost.stages.embed import EmbedConfig, WhiteningConfig, embed, fit_whitening, whitening_of
from permafrost.stages.embed.finish import finish
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from tests.stages.embed.memory_features import MemoryFeatures
from tests.stages.embed.test_embed_layers import SIZES

assert_close = partial(np.testing.assert_allclose, atol=1e-5)
"""The mapped vectors are float32 numbers of size 1 to 4, squared and averaged."""


def _vectors(n: int, seed: int = 0) -> np.ndarray:
    """Correlated, off centre, of very different variances."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(6, 6)) * [1, 1, 1, 10, 0.1, 3]
    return (rng.normal(size=(n, 6)) @ mixing + 5).astype(np.float32)


def _covariance(vectors: np.ndarray) -> np.ndarray:
    return np.cov(vectors.T.astype(np.float64), bias=True)


@pytest.mark.parametrize("n_components", [None, 3, 6])
def test_training_vectors_become_white(n_components: int | None) -> None:
    train = _vectors(200)
    found = fit_whitening(WhiteningConfig(n_components=n_components), train).apply(train)
    width = n_components or 6
    assert found.shape == (200, width)
    assert found.dtype == np.float32
    assert_close(found.mean(0, dtype=np.float64), 0)
    assert_close(_covariance(found), np.eye(width))


def test_the_directions_kept_are_those_of_the_largest_variance() -> None:
    train = _vectors(200)
    variances, directions = np.linalg.eigh(_covariance(train))
    found = fit_whitening(WhiteningConfig(n_components=2), train).apply(train)
    for column, i in enumerate((-1, -2)):
        expected = (train - train.mean(0)) @ directions[:, i] / np.sqrt(variances[i])
        # A direction has no sign.
        sign = np.sign(expected @ found[:, column])
        np.testing.assert_allclose(found[:, column], sign * expected, atol=1e-4)


def test_other_texts_do_not_touch_the_statistics() -> None:
    config = EmbedConfig(whitening=WhiteningConfig(n_components=4))
    vectors, train = _vectors(60), np.arange(40)
    found = finish(config, vectors, str, whitening=whitening_of(config, vectors, str, train))
    assert_close(_covariance(found[:40]), np.eye(4))
    changed = vectors.copy()
    changed[40:] = changed[40:] * 7 + 100
    again = finish(config, changed, str, whitening=whitening_of(config, changed, str, train))
    assert np.array_equal(found[:40], again[:40])
    assert np.abs(_covariance(found) - np.eye(4)).max() > 0.05


def test_directions_without_variance_are_not_blown_up() -> None:
    train = _vectors(200)
    train[:, 5] = train[:, 4]
    largest = np.linalg.eigvalsh(_covariance(train))[-1]
    found = fit_whitening(WhiteningConfig(eps=1e-4), train)
    assert np.linalg.norm(found.matrix, axis=0).max() <= 1 / np.sqrt(1e-4 * largest) * (1 + 1e-9)
    assert_close(_covariance(found.apply(train))[:4, :4], np.eye(4))


def test_of_few_texts_only_the_directions_are_kept_in_which_they_vary() -> None:
    train, others = _vectors(4), _vectors(500, seed=1)
    found = fit_whitening(WhiteningConfig(), train)
    three = fit_whitening(WhiteningConfig(n_components=3), train)
    assert np.array_equal(found.matrix, three.matrix)
    assert_close(_covariance(found.apply(train)), np.eye(3))
    assert np.mean(found.apply(others) ** 2) < 100, "another direction would count a thousandfold"


def test_embed_whitens_before_it_normalises() -> None:
    rows = Ragged(_vectors(30), np.arange(31))
    features = MemoryFeatures(SIZES, {"hidden/2": rows})
    whitening, train = WhiteningConfig(), np.arange(20)
    config = EmbedConfig(whitening=whitening, normalise="l2")
    found = embed(config, features, SilentProgress(), train=train)
    white = fit_whitening(whitening, rows.data[:20]).apply(rows.data)
    expected = white / np.linalg.norm(white, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="training texts"):
        embed(config, features, SilentProgress())


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(InputError, match=r"to 5 components .* 5 training texts .* at most 4"):
        fit_whitening(WhiteningConfig(n_components=5), _vectors(5))
    with pytest.raises(InputError, match="at most 6 directions"):
        fit_whitening(WhiteningConfig(n_components=7), _vectors(50))
    with pytest.raises(InputError, match="at most 0 directions"):
        fit_whitening(WhiteningConfig(), _vectors(1))
    with pytest.raises(InputError, match="are equal"):
        fit_whitening(WhiteningConfig(), np.ones((5, 3), dtype=np.float32))
