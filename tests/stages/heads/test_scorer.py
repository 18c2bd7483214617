from pathlib import Path

import torch

from permafrost.stages.heads import ScorerHead, readout
from tests.stages.heads.batches import make_batch

LENGTHS = [6, 1, 9, 3]


def _head(width=5, hidden=7):
    return ScorerHead(hidden=hidden).build(width, torch.Generator().manual_seed(1)).double()


def _formula(head, tokens, offsets):
    first, second = head.readout.first, head.readout.second
    vectors, weights = [], []
    for rows in tokens.split(offsets.diff().tolist()):
        share = second(torch.tanh(first(rows))).softmax(dim=0)
        vectors.append((share * rows).sum(dim=0))
        weights.append(share[:, 0])
    return torch.stack(vectors), torch.cat(weights)


def test_vectors_weights_and_gradients_equal_the_formula_text_by_text(monkeypatch):
    tokens, offsets = make_batch(LENGTHS, 5)
    tokens.requires_grad_()
    head = _head()
    expected, shares = _formula(head, tokens, offsets)
    for most in (1, 5, 1 << 10):
        monkeypatch.setitem(readout.MOST, "cpu", most)
        found = head(tokens, offsets)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(head.token_weights(tokens, offsets), shares)
        pull = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
        variables = [tokens, *head.parameters()]
        mine = torch.autograd.grad(found, variables, pull)
        yours = torch.autograd.grad(expected, variables, pull, retain_graph=True)
        for one, other in zip(mine, yours, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_weights_are_shares_that_sum_to_one_per_text():
    tokens, offsets = make_batch(LENGTHS, 5)
    weights = _head().token_weights(tokens, offsets)
    assert weights is not None
    assert (weights >= 0).all()
    sums = torch.stack([part.sum() for part in weights.split(LENGTHS)])
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_constant_score_is_the_mean_and_a_huge_one_picks_its_token():
    tokens, offsets = make_batch(LENGTHS, 5)
    head = _head()
    torch.nn.init.zeros_(head.readout.second.weight)
    means = torch.stack([part.mean(dim=0) for part in tokens.split(LENGTHS)])
    torch.testing.assert_close(head(tokens, offsets), means)
    # Column 0 marks the first tokens; the scorer reads nothing else.
    tokens[:, 0] = -1.0
    tokens[offsets[:-1], 0] = 1.0
    torch.nn.init.zeros_(head.readout.first.weight)
    torch.nn.init.zeros_(head.readout.first.bias)
    head.readout.first.weight.data[:, 0] = 1.0
    torch.nn.init.constant_(head.readout.second.weight, 1e3)
    torch.testing.assert_close(head(tokens, offsets), tokens[offsets[:-1]])


def test_parameter_counts_are_those_of_the_papers():
    assert ScorerHead(hidden=512).build(4096, torch.Generator()).n_parameters == 2_098_177


def test_no_private_operator_is_called():
    stages = Path(__file__).parents[3] / "stages"
    assert [p for p in stages.rglob("*.py") if "torch.ops" in p.read_text()] == []
