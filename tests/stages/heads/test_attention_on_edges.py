"""Graph attention along lists of edges, against torch-geometric and against blocks."""

import pytest
import torch

from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.graph import token_graph
from permafrost.stages.heads.graph.edge_list import EdgeList
from permafrost.stages.heads.graph.neighbour_sum import neighbour_counts, neighbour_sum
from permafrost.stages.heads.graph.token_graph import build_blocks, build_edges, build_graph
from tests.stages.heads.batches import (
    magnification,
    make_batch,
    passes_gradcheck,
)
from tests.stages.heads.convolutions import CONVS, RAGGED, make_conv
from tests.stages.heads.pyg_reference import convolve, packed, pyg_layer, sentences, weights

ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5}
"""Of the largest number compared, as for blocks."""


@pytest.mark.few(40)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lengths", [[12], [1], [20, 20], RAGGED])
@pytest.mark.parametrize("tau", [-1.1, 0.3, 0.8, 1.1])
@pytest.mark.parametrize("kind", CONVS)
def test_output_and_every_gradient_equal_torch_geometric(kind, tau, lengths, dtype):
    tokens, offsets = make_batch(lengths, 6, dtype=dtype)
    tokens.requires_grad_()
    conv = make_conv(kind, dtype=dtype, tau=tau)
    layer = pyg_layer(conv)
    theirs = convolve(layer, tokens, packed(list(sentences(tokens.detach(), offsets)), tau))
    graph = build_edges(tokens, offsets, tau)
    growth = magnification(conv, tokens, graph)
    ours = conv(tokens, graph)
    pull = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=dtype)
    mine = [ours, *torch.autograd.grad(ours, [tokens, *conv.parameters()], pull)]
    # With single tokens only, or no edges, torch-geometric drops the edge attributes.
    yours = torch.autograd.grad(
        theirs, [tokens, *weights(layer)], pull, materialize_grads=True, allow_unused=True
    )
    yours = [theirs, *yours]
    largest = max(float(other.detach().abs().max()) for other in yours)
    atol = ROUNDING[dtype] * growth * largest
    for one, other in zip(mine, yours, strict=True):
        torch.testing.assert_close(one, other.reshape(one.shape), rtol=0, atol=atol)


@pytest.mark.parametrize("kind", CONVS)
def test_the_written_gradient_passes_gradcheck(kind):
    tokens, offsets = make_batch([4, 1, 3, 5], 3)
    conv = make_conv(kind, 3, 3)
    edges = build_edges(tokens, offsets, 0.2)
    assert passes_gradcheck(conv, tokens, edges)


def test_isolated_tokens_among_connected_ones_equal_blocks():
    tokens, offsets = make_batch([8, 5], 6, shared=4.0)
    tokens[3], tokens[9] = -tokens[3], 0.0
    conv = make_conv("gat")
    found = conv(tokens, build_edges(tokens, offsets, 0.5))
    torch.testing.assert_close(found, conv(tokens, build_blocks(tokens, offsets, 0.5)))
    torch.testing.assert_close(found[3], conv.weight @ tokens[3] + conv.bias)


def test_scores_far_apart_do_not_overflow():
    tokens, offsets = make_batch([20], 6, dtype=torch.float32)
    tokens.requires_grad_()
    conv = make_conv("gat", dtype=torch.float32)
    out = conv(1e4 * tokens, build_edges(tokens.detach(), offsets, 0.3))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(tokens.grad).all()


def test_sums_and_counts_over_neighbours_equal_those_of_blocks():
    tokens, offsets = make_batch(RAGGED, 6)
    blocks, edges = build_blocks(tokens, offsets, 0.4), build_edges(tokens, offsets, 0.4)
    torch.testing.assert_close(neighbour_sum(tokens, edges), neighbour_sum(tokens, blocks))
    assert torch.equal(neighbour_counts(tokens, edges), neighbour_counts(tokens, blocks))


def test_long_texts_in_float32_equal_blocks_in_float64():
    tokens, offsets = make_batch([200, 131, 90], 64)
    conv = make_conv("gat", 64, 128)
    pull = torch.randn(421, 128, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def run(build, dtype):
        mine = conv.to(dtype)
        out = mine(tokens.to(dtype), build(tokens, offsets, 0.5))
        return [out, *torch.autograd.grad(out, list(mine.parameters()), pull.to(dtype))]

    def as_float32(build):
        return lambda tokens, offsets, tau: build(tokens.float(), offsets, tau)

    expected = run(build_blocks, torch.float64)
    largest = max(float(one.detach().abs().max()) for one in expected)
    for build in (build_blocks, build_edges):
        for one, other in zip(run(as_float32(build), torch.float32), expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("cost", [0, 10**9], ids=["edges", "blocks"])
@pytest.mark.parametrize("conv", ["gat", "gcn", "gin", "gin_plain"])
def test_a_head_gives_the_same_in_either_form(monkeypatch, conv, cost):
    tokens, offsets = make_batch([14, 1, 30, 9, 30], 6)
    head = GlotHead(hidden=4, tau=0.3, conv=conv).build(6, torch.Generator().manual_seed(2))
    head = head.double()
    expected = head(tokens, offsets)
    wanted = torch.autograd.grad(expected.square().sum(), list(head.parameters()))
    monkeypatch.setattr(token_graph, "PAIRS_OF_AN_EDGE", cost)
    assert isinstance(build_graph(tokens, offsets, 0.3), EdgeList) == (cost == 0)
    found = head(tokens, offsets)
    torch.testing.assert_close(found, expected)
    mine = torch.autograd.grad(found.square().sum(), list(head.parameters()))
    for one, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_the_number_of_threads_changes_nothing():
    tokens, offsets = make_batch([60, 17, 90], 16, dtype=torch.float32)
    conv = make_conv("gat", 16, 32, torch.float32)
    edges = build_edges(tokens, offsets, 0.5)
    found = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        out = conv(tokens, edges)
        found.append((out, *torch.autograd.grad(out.square().sum(), list(conv.parameters()))))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_nothing_of_the_size_of_the_graph_is_kept_for_the_backward_pass():
    tokens, offsets = make_batch([50, 50], 6)
    conv = make_conv("gat")
    edges = build_edges(tokens, offsets, 0.3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        out = conv(tokens, edges)
    assert kept
    assert max(kept) <= tokens.numel() < len(edges.senders)
    # Tensors that a written-out function keeps beside these hang on its node.
    nodes, others = [out.grad_fn], []
    while nodes:
        node = nodes.pop()
        others += [
            x.numel() for x in getattr(node, "__dict__", {}).values() if isinstance(x, torch.Tensor)
        ]
        nodes += [following for following, _ in node.next_functions if following is not None]
    assert max(others, default=0) <= tokens.numel()
