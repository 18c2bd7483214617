import numpy as np
import pytest
import torch

from permafrost.stages.heads import GlotHead, MlpHead, matched_hidden
from permafrost.storage.errors import InputError
from tests.stages.heads.batches import make_batch
from tests.stages.heads.pyg_reference import MLP, global_mean_pool

LENGTHS = [6, 1, 9, 3]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
"""Rounding of sums of up to 19 tokens and 8 columns of order 1 in another order."""


def _pair(width=5, dtype=torch.float64, **settings):
    config = MlpHead(**({"hidden": 8, "n_layers": 3} | settings))
    head = config.build(width, torch.Generator().manual_seed(1)).to(dtype)
    # A lone token in training: torch-geometric's answer to a batch without variance.
    reference = MLP(
        [width] + [config.hidden] * config.n_layers, norm_kwargs={"allow_single_element": True}
    ).to(dtype)
    with torch.no_grad():
        for norm in head.norms:
            norm.weight.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(2))
            norm.bias.normal_(generator=torch.Generator().manual_seed(3))
        for mine, yours in zip(_parameters(head), reference.parameters(), strict=True):
            yours.copy_(mine)
    return head, reference


def _parameters(head):
    return [*head.linears.parameters(), *head.norms.parameters()]


def _expected(reference, tokens, offsets):
    owner = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    return global_mean_pool(reference(tokens), owner)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n_layers", [1, 2, 4])
def test_vectors_gradients_and_statistics_equal_torch_geometric(n_layers, dtype):
    head, reference = _pair(dtype=dtype, n_layers=n_layers)
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}
    for step in range(3):
        tokens, offsets = make_batch(LENGTHS, 5, seed=step, dtype=dtype)
        tokens.requires_grad_()
        found, expected = head(tokens, offsets), _expected(reference, tokens, offsets)
        torch.testing.assert_close(found, expected, **close)
        pull = torch.linspace(-1, 1, found.numel(), dtype=dtype).view_as(found) / 10
        mine = torch.autograd.grad(found, [tokens, *_parameters(head)], pull)
        yours = torch.autograd.grad(expected, [tokens, *reference.parameters()], pull)
        for one, other in zip(mine, yours, strict=True):
            torch.testing.assert_close(one, other, **close)
    for norm, theirs in zip(head.norms, reference.norms, strict=True):
        torch.testing.assert_close(norm.running_mean, theirs.module.running_mean, **close)
        torch.testing.assert_close(norm.running_var, theirs.module.running_var, **close)
    head.eval()
    reference.eval()
    tokens, offsets = make_batch(LENGTHS, 5, seed=9, dtype=dtype)
    torch.testing.assert_close(
        head(tokens, offsets), _expected(reference, tokens, offsets), **close
    )


def test_the_formula_in_numpy_over_all_tokens_of_the_batch():
    head, _ = _pair(n_layers=2)
    tokens, offsets = make_batch(LENGTHS, 5)
    first, last = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in head.linears
    )
    rows = tokens.numpy() @ first[0].T + first[1]
    rows = (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-5)
    norm = head.norms[0]
    rows = np.maximum(rows * norm.weight.detach().numpy() + norm.bias.detach().numpy(), 0)
    rows = rows @ last[0].T + last[1]
    expected = np.stack([part.mean(axis=0) for part in np.split(rows, offsets[1:-1].numpy())])
    np.testing.assert_allclose(head(tokens, offsets).detach().numpy(), expected, rtol=1e-10)


def test_a_batch_of_one_token_in_training_takes_the_running_statistics():
    head, reference = _pair()
    tokens, offsets = make_batch([1], 5)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    found = head(tokens, offsets)
    torch.testing.assert_close(found, _expected(reference, tokens, offsets))
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    head.eval()
    torch.testing.assert_close(head(tokens, offsets), found)


def test_in_evaluation_a_text_does_not_depend_on_its_batch_and_in_training_it_does():
    head, _ = _pair()
    tokens, offsets = make_batch(LENGTHS, 5)
    head(tokens, offsets)
    alone = tokens[7:16], torch.tensor([0, 9])
    assert not torch.allclose(head(tokens, offsets)[2], head(*alone)[0])
    head.eval()
    torch.testing.assert_close(head(tokens, offsets)[2], head(*alone)[0])


def test_weights_are_those_of_the_mean():
    head, _ = _pair()
    tokens, offsets = make_batch([2, 1, 4], 5)
    expected = [1 / 2] * 2 + [1.0] + [1 / 4] * 4
    assert head.token_weights(tokens, offsets).tolist() == expected
    assert head.d_out == 8


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("d_in", [8, 768])
def test_the_matched_width_is_the_closest_one(d_in, n_layers):
    def count(hidden):
        config = MlpHead(hidden=hidden, n_layers=n_layers)
        return config.build(d_in, torch.Generator()).n_parameters

    for target in (40_000, 100_001):
        hidden = matched_hidden(d_in, target, n_layers)
        error = abs(count(hidden) - target)
        assert error <= abs(count(hidden - 1) - target)
        assert error <= abs(count(hidden + 1) - target)
        assert matched_hidden(d_in, count(hidden), n_layers) == hidden


def test_an_mlp_matches_glot_of_the_papers_size_within_a_permille():
    glot = GlotHead().build(768, torch.Generator()).n_parameters
    hidden = matched_hidden(768, glot, 2)
    mlp = MlpHead(hidden=hidden).build(768, torch.Generator()).n_parameters
    assert (glot, abs(mlp - glot) < glot // 1000) == (641_281, True)


def test_fewer_parameters_than_a_width_of_one_has_are_refused():
    with pytest.raises(InputError, match="at least 9 parameters, but 8 were asked for"):
        matched_hidden(8, 8, 1)
    assert matched_hidden(8, 9, 1) == 1
