import pytest
import torch

from permafrost.stages.heads.graph import token_graph
from permafrost.stages.heads.graph.edge_list import EdgeList, gather, list_edges
from permafrost.stages.heads.graph.token_graph import build_edges, build_graph
from permafrost.stages.heads.layout import lay_out
from tests.stages.heads.batches import make_batch
from tests.stages.heads.pyg_reference import edge_index, sentences

RAGGED = [23, 1, 7, 40, 1, 40, 12]


def _pairs(tokens, offsets, tau):
    """(from, to) of every edge, text by text, with self loops."""
    found = {(i, i) for i in range(len(tokens))}
    for start, text in zip(offsets.tolist(), sentences(tokens, offsets), strict=False):
        found |= {(j, i) for i, j in (edge_index(text, tau) + start).t().tolist()}
    return sorted(found, key=lambda pair: (pair[1], pair[0]))


def _check(edges, pairs, n_tokens):
    """An edge list against its pairs, sorted by receiver and sender."""
    senders, receivers = torch.tensor(pairs).t()
    assert edges.senders.tolist() == senders.tolist()
    assert edges.receivers.tolist() == receivers.tolist()
    assert edges.starts.diff().tolist() == torch.bincount(receivers, minlength=n_tokens).tolist()
    assert edges.back_starts.diff().tolist() == torch.bincount(senders, minlength=n_tokens).tolist()
    assert sorted(edges.order.tolist()) == list(range(len(pairs)))
    by_sender = edges.senders[edges.order]
    assert by_sender.tolist() == sorted(senders.tolist())
    assert torch.equal(edges.back_receivers, edges.receivers[edges.order])


@pytest.mark.parametrize("tau", [-1.1, 0.0, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("lengths", [[5], [1], [1, 1, 1], [20, 20], RAGGED])
def test_edges_are_the_pairs_above_tau_in_both_orders(lengths, tau):
    tokens, offsets = make_batch(lengths, 6)
    _check(build_edges(tokens, offsets, tau), _pairs(tokens, offsets, tau), len(tokens))


def test_texts_of_several_blocks_come_in_the_order_of_the_batch(monkeypatch):
    monkeypatch.setitem(token_graph.PAIRS, "cpu", 300)
    tokens, offsets = make_batch(RAGGED, 6)
    assert len(list(lay_out(offsets, 300, token_graph.MULTIPLE))) > 2
    _check(build_edges(tokens, offsets, 0.3), _pairs(tokens, offsets, 0.3), len(tokens))


def test_a_graph_need_not_be_symmetric():
    offsets = torch.tensor([0, 2, 5])
    adjacency = []
    for layout in lay_out(offsets, 1):
        n_texts, longest = layout.shape
        adjacency.append((layout, torch.ones(n_texts, longest, longest).tril().bool()))
    pairs = [(0, 0), (0, 1), (1, 1), (2, 2), (2, 3), (3, 3), (2, 4), (3, 4), (4, 4)]
    _check(list_edges(adjacency, offsets), pairs, 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gathered_rows_are_the_sums_over_the_edges(dtype):
    tokens, offsets = make_batch(RAGGED, 6, dtype=dtype)
    edges = build_edges(tokens, offsets, 0.4)
    weights = torch.rand(
        len(edges.senders), generator=torch.Generator().manual_seed(1), dtype=dtype
    )
    for factor in (None, weights):
        rows = tokens[edges.senders] if factor is None else tokens[edges.senders] * factor[:, None]
        expected = torch.zeros_like(tokens).index_add_(0, edges.receivers.long(), rows)
        found = gather(tokens, edges.starts, edges.senders, factor)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_edges_are_listed_and_many_stay_in_blocks(dtype):
    tokens, offsets = make_batch([30, 27], 8, dtype=dtype)
    for tau in (-1.1, 0.1, 0.5, 0.7, 1.0):
        n_edges = len(_pairs(tokens, offsets, tau))
        (layout,) = lay_out(offsets, token_graph.PAIRS["cpu"], token_graph.MULTIPLE)
        n_pairs = layout.shape[0] * layout.shape[1] ** 2
        few = n_edges * token_graph.PAIRS_OF_AN_EDGE < n_pairs
        assert isinstance(build_graph(tokens, offsets, tau), EdgeList) == few
    assert few, "the last threshold leaves few edges"
    assert not isinstance(build_graph(tokens, offsets, -1.1), EdgeList)


def test_in_bfloat16_every_graph_stays_in_blocks():
    tokens, offsets = make_batch([30, 12], 8, dtype=torch.float32)
    assert isinstance(build_graph(tokens, offsets, 1.0), EdgeList)
    assert not isinstance(build_graph(tokens.bfloat16(), offsets, 1.0), EdgeList)
