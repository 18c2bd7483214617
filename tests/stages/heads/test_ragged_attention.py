"""Attention pooling over ragged texts: values and the written gradient."""

from itertools import pairwise

import torch

from permafrost.stages.heads.ragged_sums import attend, owners, softmax
from tests.stages.heads.batches import make_batch

LENGTHS = [4, 1, 6]


def _drawn(lengths):
    tokens, offsets = make_batch(lengths, 5)
    scores = torch.randn(len(tokens), generator=torch.Generator().manual_seed(3)).double()
    return scores.requires_grad_(), offsets, [tokens[:, :2], tokens[:, 2:].clone().requires_grad_()]


def test_sums_and_weights_equal_the_formula_text_by_text():
    scores, offsets, parts = _drawn(LENGTHS)
    sums, weights = attend(scores, offsets, parts)
    for n, (start, end) in enumerate(pairwise(offsets.tolist())):
        share = scores[start:end].softmax(dim=0)
        torch.testing.assert_close(weights[start:end], share)
        torch.testing.assert_close(sums[n], share @ torch.cat(parts, dim=1)[start:end])


def test_the_gradient_of_sums_and_weights_passes_gradcheck():
    scores, offsets, parts = _drawn(LENGTHS)
    assert torch.autograd.gradcheck(
        lambda s, p: attend(s, offsets, [parts[0], p]), (scores, parts[1])
    )


def test_a_part_that_needs_no_gradient_gets_none():
    scores, offsets, parts = _drawn(LENGTHS)
    sums, _ = attend(scores, offsets, parts)
    sums.square().sum().backward()
    assert parts[0].grad is None
    assert parts[1].grad.shape == parts[1].shape


def test_a_softmax_that_is_told_the_owners_is_the_same():
    scores, offsets, _ = _drawn(LENGTHS)
    owner = owners(offsets, len(scores))
    assert owner.tolist() == [0] * 4 + [1] + [2] * 6
    assert torch.equal(softmax(scores, offsets, owner), softmax(scores, offsets))
