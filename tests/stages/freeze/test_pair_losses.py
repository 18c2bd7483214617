import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from permafrost.stages.fit.trainer import shuffled_batches
from permafrost.stages.freeze import L1, LogVariance, Mse, Variance
from permafrost.stages.freeze.losses import VARIANCE_FLOOR
from permafrost.storage.errors import InputError
from tests.stages.freeze.layer_reference import generator


def _batch(n=16, seed=0):
    numbers = torch.rand(2, n, dtype=torch.float64, generator=generator(seed))
    return numbers[0].requires_grad_(), numbers[1]


# Relation 68


def test_log_variance_is_the_logarithm_of_the_unbiased_variance():
    predicted, gold = _batch()
    expected = math.log(np.var((predicted - gold).detach().numpy(), ddof=1))
    assert LogVariance().of(predicted, gold).item() == pytest.approx(expected, rel=1e-12)


def test_a_constant_added_to_predictions_changes_nothing():
    predicted, gold = _batch()
    # Float64 rounding of numbers near 1.
    assert LogVariance().of(predicted + 0.3, gold).item() == pytest.approx(
        LogVariance().of(predicted, gold).item(), abs=1e-12
    )


def test_gradients_over_a_batch_sum_to_nothing():
    predicted, gold = _batch()
    LogVariance().of(predicted, gold).backward()
    assert predicted.grad is not None
    assert predicted.grad.abs().max() > 0.01
    assert predicted.grad.sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_scaled_residuals_move_the_loss_by_twice_the_logarithm(factor):
    predicted, gold = _batch()
    scaled = gold + factor * (predicted - gold)
    moved = LogVariance().of(scaled, gold) - LogVariance().of(predicted, gold)
    assert moved.item() == pytest.approx(2 * math.log(factor), abs=1e-12)


def test_mse_is_biased_variance_plus_squared_mean():
    predicted, gold = _batch()
    residual = (predicted - gold).detach().numpy()
    expected = np.var(residual) + residual.mean() ** 2
    assert Mse().of(predicted, gold).item() == pytest.approx(expected, rel=1e-12)


def test_variance_and_l1_are_numpys():
    predicted, gold = _batch()
    residual = (predicted - gold).detach().numpy()
    variance, l1 = (loss.of(predicted, gold).item() for loss in (Variance(), L1()))
    assert variance == pytest.approx(np.var(residual, ddof=1), rel=1e-12)
    assert l1 == pytest.approx(np.abs(residual).mean(), rel=1e-12)
    assert math.log(variance) == pytest.approx(LogVariance().of(predicted, gold).item(), rel=1e-12)


# Relation 69


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_have_no_variance(n):
    with pytest.raises(InputError, match=f"the batch has {n} pairs; give at least 2"):
        LogVariance().of(torch.zeros(n), torch.zeros(n))


def test_a_perfect_fit_has_a_finite_loss_and_no_gradient():
    gold = torch.rand(8, generator=generator())
    predicted = gold.clone().requires_grad_()
    loss = LogVariance().of(predicted, gold)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(VARIANCE_FLOOR))
    assert predicted.grad is not None
    assert torch.equal(predicted.grad, torch.zeros(8))


@given(st.integers(1, 200), st.integers(2, 50), st.integers(0, 3), st.integers(1, 3))
def test_batches_hold_every_example_once_and_never_one_alone(n, size, seed, epoch):
    batches = shuffled_batches(n, size, seed, epoch, least=2)
    assert sorted(np.concatenate(batches).tolist()) == list(range(n))
    if n > 1:
        assert min(len(batch) for batch in batches) >= 2
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(batches[-1]) <= size + 1


def test_the_order_depends_on_seed_and_epoch():
    def order(seed, epoch):
        return np.concatenate(shuffled_batches(50, 8, seed, epoch)).tolist()

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)
