"""Products against the same ones in float64, whatever multiplies float32 on this machine."""

import pytest
import torch

from permafrost.stages.heads.products import (
    LARGE,
    MOST,
    STEP,
    filled,
    linear_map,
    pieces,
    product,
    products,
    tanh_product,
)

COUNTS = [1, STEP - 1, STEP, STEP + 1, MOST["cpu"], MOST["cpu"] + 1, 2 * MOST["cpu"] + 100]


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _close(found, left, right):
    """Each number within the rounding of its own sum of products: a step of 2**-24 per term at most."""
    exact = left.double() @ right.double()
    bound = left.shape[-1] * 2.0**-24 * (left.double().abs() @ right.double().abs())
    assert found.dtype == torch.float32
    assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("transposed", ["neither", "left", "right", "both"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (64, 384, 128), (320, 96, 640), (33, 7, 5)])
def test_a_product_of_matrices_or_their_transposes(m, k, n, transposed):
    left, right = _random(m, k), _random(k, n, seed=1)
    if transposed in ("left", "both"):
        left = left.t().contiguous().t()
    if transposed in ("right", "both"):
        right = right.t().contiguous().t()
    _close(product(left, right), left, right)


def test_a_product_with_bias_and_tanh():
    left, right, bias = _random(96, 40), _random(40, 24, seed=1), _random(24, seed=2)
    expected = torch.tanh(left.double() @ right.double() + bias.double())
    # 40 products and a bias of order 1 to 10 before a function of slope at most 1.
    torch.testing.assert_close(
        tanh_product(left, right, bias).double(), expected, rtol=0, atol=1e-5
    )
    wide = tanh_product(left.double(), right.double(), bias.double())
    torch.testing.assert_close(wide, expected)


@pytest.mark.parametrize(
    ("b", "m", "k", "n"), [(5, 40, 24, 40), (1, 104, 104, 104), (3, 104, 104, 104)]
)
def test_products_of_texts_small_and_large(b, m, k, n):
    assert (m * k * n >= LARGE) == (m == 104)
    left, right = _random(b, m, k), _random(b, n, k, seed=1).transpose(1, 2)
    found = products(left, right)
    assert found.shape == (b, m, n)
    for mine, one, other in zip(found, left, right, strict=True):
        _close(mine, one, other)


@pytest.mark.parametrize("n_tokens", COUNTS)
@pytest.mark.parametrize("most", [1, STEP, 3 * STEP, MOST["cpu"]])
def test_pieces_are_all_tokens_in_order_and_filled_they_have_few_sizes(n_tokens, most, monkeypatch):
    monkeypatch.setitem(MOST, "cpu", most)
    tokens = _random(n_tokens, 3)
    found = [filled([tokens[:, :1], tokens[:, 1:]], piece) for piece in pieces(tokens)]
    counts = [len(tokens[piece]) for piece in pieces(tokens)]
    assert max(counts) <= most
    assert torch.equal(torch.cat([x[:n] for x, n in zip(found, counts, strict=True)]), tokens)
    for rows, n in zip(found, counts, strict=True):
        assert len(rows) % STEP == 0
        assert not rows[n:].any()


@pytest.mark.parametrize("n_tokens", COUNTS)
def test_a_linear_map_of_any_number_of_tokens_and_its_gradients(n_tokens):
    tokens, weight = (
        _random(n_tokens, 24).requires_grad_(),
        _random(10, 24, seed=1).requires_grad_(),
    )
    pull = _random(n_tokens, 10, seed=2)
    out = linear_map(tokens, weight)
    _close(out, tokens, weight.t())
    to_tokens, to_weight = torch.autograd.grad(out, [tokens, weight], pull)
    _close(to_tokens, pull, weight)
    _close(to_weight, pull.t(), tokens)


def test_a_linear_map_passes_gradcheck():
    tokens = _random(5, 4).double().requires_grad_()
    weight = _random(3, 4, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(linear_map, (tokens, weight))


def test_tokens_that_need_no_gradient_get_none():
    weight = _random(3, 4).requires_grad_()
    tokens = _random(70, 4)
    linear_map(tokens, weight).sum().backward()
    assert tokens.grad is None
    _close(weight.grad, torch.ones(3, 70), tokens)


def test_the_number_of_threads_changes_nothing():
    tokens, weight = _random(2000, 96), _random(64, 96, seed=1).requires_grad_()
    found = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        out = linear_map(tokens, weight)
        found.append((out, *torch.autograd.grad(out.square().sum(), [weight])))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
