from itertools import pairwise

import pytest
import torch

from permafrost.stages.heads.graph.token_graph import build_blocks, edges
from tests.stages.heads.batches import make_batch
from tests.stages.heads.pyg_reference import edge_index, sentences


@pytest.mark.parametrize("tau", [-0.2, 0.0, 0.4, 0.6])
@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [40, 3, 17, 40, 1, 25], [100, 2]])
def test_edges_are_the_pairs_of_one_text_with_a_cosine_above_tau(lengths, tau):
    tokens, offsets = make_batch(lengths, 6)
    expected = set()
    for start, sentence in zip(offsets.tolist(), sentences(tokens, offsets), strict=False):
        pairs = edge_index(sentence, tau) + start
        expected |= {tuple(pair) for pair in pairs.t().tolist()}
    expected |= {(i, i) for i in range(len(tokens))}
    assert {tuple(pair) for pair in edges(tokens, offsets, tau).t().tolist()} == expected


def test_the_graph_is_symmetric_and_shrinks_as_tau_grows():
    tokens, offsets = make_batch([30, 12], 8)
    found = [
        {tuple(pair) for pair in edges(tokens, offsets, tau).t().tolist()}
        for tau in (-0.5, 0.2, 0.5, 0.8)
    ]
    for pairs in found:
        assert {(j, i) for i, j in pairs} == pairs
    for wide, narrow in pairwise(found):
        assert narrow < wide


def test_scaling_a_token_does_not_change_the_graph():
    tokens, offsets = make_batch([30, 12], 8)
    scales = 2.0 ** torch.arange(-21, 21, dtype=tokens.dtype)[:, None]
    assert torch.equal(edges(tokens * scales, offsets, 0.5), edges(tokens, offsets, 0.5))


@pytest.mark.parametrize("tau", [1.0, 1.5])
def test_from_tau_one_on_every_token_stands_alone_even_next_to_its_copy(tau):
    tokens = torch.ones(4, 3, dtype=torch.float64)
    found = edges(tokens, torch.tensor([0, 4]), tau)
    assert found.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_below_minus_one_the_graph_is_complete_and_at_zero_only_if_all_cosines_are_positive():
    tokens, offsets = make_batch([9, 4], 5, shared=0.0)
    complete = 9 * 9 + 4 * 4
    assert edges(tokens, offsets, -1.0 - 1e-12).shape[1] == complete
    assert edges(tokens, offsets, 0.0).shape[1] < complete
    assert edges(tokens.abs(), offsets, 0.0).shape[1] == complete


def test_a_zero_token_is_connected_to_nothing_but_itself():
    tokens, offsets = make_batch([6], 5, shared=3.0)
    tokens[2] = 0
    found = edges(tokens, offsets, 0.1)
    assert found[:, (found == 2).any(dim=0)].tolist() == [[2], [2]]


def test_the_graph_carries_no_gradient():
    tokens, offsets = make_batch([5, 3], 4)
    tokens.requires_grad_()
    assert not any(block.penalty.requires_grad for block in build_blocks(tokens, offsets, 0.3))
