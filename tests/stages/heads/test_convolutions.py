"""Every convolution against torch-geometric's own layer; more on graph attention in its own file."""

import pytest
import torch

from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.graph import token_graph
from permafrost.stages.heads.graph.graph_attention import GraphAttention
from permafrost.stages.heads.graph.neighbour_sum import neighbour_counts, neighbour_sum
from permafrost.stages.heads.graph.token_graph import build_blocks, edges
from tests.stages.heads.batches import (
    magnification,
    make_batch,
    passes_gradcheck,
)
from tests.stages.heads.convolutions import CONVS, RAGGED, make_conv
from tests.stages.heads.pyg_reference import convolve, packed, pyg_layer, sentences, weights

RTOL = {torch.float64: 1e-11, torch.float32: 1e-5}
"""Of the largest number compared: sums of up to 40 tokens and 124 rows in another order, 2**-53 and
2**-24 relative each."""


def _close(found, expected, growth=1.0):
    expected = expected.reshape(found.shape)
    atol = RTOL[found.dtype] * growth * float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tau", [-1.1, 0.3, 0.8, 1.1])
@pytest.mark.parametrize("kind", CONVS)
def test_output_and_every_gradient_equal_torch_geometric(kind, tau, dtype):
    tokens, offsets = make_batch(RAGGED, 6, dtype=dtype)
    tokens.requires_grad_()
    conv = make_conv(kind, dtype=dtype, tau=tau)
    layer = pyg_layer(conv)
    theirs = convolve(layer, tokens, packed(list(sentences(tokens.detach(), offsets)), tau))
    graph = build_blocks(tokens, offsets, tau)
    growth = magnification(conv, tokens, graph)
    ours = conv(tokens, graph)
    _close(ours, theirs, growth)
    pull = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=dtype)
    mine = torch.autograd.grad(ours, [tokens, *conv.parameters()], pull)
    # With single tokens only, or no edges, torch-geometric drops the edge attributes.
    yours = torch.autograd.grad(
        theirs, [tokens, *weights(layer)], pull, materialize_grads=True, allow_unused=True
    )
    rounding = RTOL[dtype] * growth * max(float(other.abs().max()) for other in yours)
    for one, other in zip(mine, yours, strict=True):
        torch.testing.assert_close(one, other.reshape(one.shape), rtol=0, atol=rounding)


@pytest.mark.parametrize("kind", CONVS)
def test_the_gradient_passes_gradcheck_over_several_blocks(monkeypatch, kind):
    monkeypatch.setitem(token_graph.PAIRS, "cpu", 30)
    tokens, offsets = make_batch([4, 1, 3, 5], 3)
    conv = make_conv(kind, 3, 3)
    blocks = build_blocks(tokens, offsets, 0.2)
    assert len(blocks) > 1
    assert passes_gradcheck(conv, tokens, blocks)


def test_sums_and_counts_over_neighbours_equal_the_edge_list():
    tokens, offsets = make_batch(RAGGED, 6)
    blocks = build_blocks(tokens, offsets, 0.4)
    source, target = edges(tokens, offsets, 0.4)
    expected = torch.zeros_like(tokens).index_add_(0, target, tokens[source])
    torch.testing.assert_close(neighbour_sum(tokens, blocks), expected)
    counts = neighbour_counts(tokens, blocks)
    assert counts.tolist() == torch.bincount(target, minlength=len(tokens)).tolist()


def test_a_sum_keeps_nothing_of_the_size_of_the_graph_for_the_backward_pass():
    tokens, offsets = make_batch([50, 50], 6)
    tokens.requires_grad_()
    blocks = build_blocks(tokens, offsets, 0.3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        neighbour_sum(tokens, blocks).sum()
    assert kept == []


def test_attention_heads_are_separate_attentions_on_their_share_of_the_columns():
    tokens, offsets = make_batch(RAGGED, 6)
    blocks = build_blocks(tokens, offsets, 0.3)
    both = make_conv("gat-3")
    parts = []
    for columns in torch.arange(6).view(3, 2):
        one = GraphAttention(6, 2, torch.Generator()).double()
        one.load_state_dict({name: value[columns] for name, value in both.state_dict().items()})
        parts.append(one(tokens, blocks))
    torch.testing.assert_close(both(tokens, blocks), torch.cat(parts, dim=1))


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("tau", [1.0, 1.1])
def test_from_tau_one_on_a_token_is_transformed_alone(kind, tau):
    tokens, offsets = make_batch(RAGGED, 6)
    conv = make_conv(kind, tau=tau).eval()
    out = conv(tokens, build_blocks(tokens, offsets, tau))
    alone = torch.cat(
        [conv(t[None], build_blocks(t[None], torch.tensor([0, 1]), tau)) for t in tokens]
    )
    torch.testing.assert_close(out, alone)
    if kind == "gin_plain":
        first, second = conv.first, conv.second
        torch.testing.assert_close(out, second(torch.relu(first(tokens))))
    elif kind == "gin":
        gathered = tokens @ conv.first.weight.t() + conv.first.bias
        expected = conv.second(torch.relu(conv.norm(gathered)))
        torch.testing.assert_close(out, expected)
    else:
        torch.testing.assert_close(out, tokens @ conv.weight.t() + conv.bias)


@pytest.mark.parametrize(("kind", "count"), [("gat", 5), ("gat-3", 5), ("gcn", 1)])
def test_parameter_counts_of_a_convolution(kind, count):
    conv = make_conv(kind, 40, 12)
    assert sum(parameter.numel() for parameter in conv.parameters()) == 40 * 12 + count * 12


@pytest.mark.parametrize(("kind", "of_norm"), [("gin", 2 * 12), ("gin_plain", 0)])
def test_parameter_count_of_an_isomorphism_convolution(kind, of_norm):
    conv = make_conv(kind, 40, 12)
    assert sum(p.numel() for p in conv.parameters()) == (40 + 1) * 12 + (12 + 1) * 12 + of_norm


def test_attention_heads_draw_from_the_distributions_of_gat_conv():
    conv = GraphAttention(300, 64, torch.Generator().manual_seed(0), heads=4)
    bounds = {
        "weight": (6 / (300 + 64)) ** 0.5,
        "sends": (6 / (4 + 16)) ** 0.5,
        "receives": (6 / (4 + 16)) ** 0.5,
        "edge": (6 / (1 + 64)) ** 0.5,
        "edge_attends": (6 / (4 + 16)) ** 0.5,
    }
    for name, bound in bounds.items():
        # The largest of 64 uniform numbers is below 0.8 of the bound with a chance of 6e-7.
        assert 0.8 * bound < float(getattr(conv, name).detach().abs().max()) <= bound


def test_without_a_graph_tokens_are_mapped_alone():
    tokens, offsets = make_batch(RAGGED, 6)
    config = GlotHead(conv="linear", hidden=4, n_convs=2)
    head = config.build(6, torch.Generator().manual_seed(0)).double()
    first, second = (conv.linear for conv in head.convs)
    inner = torch.relu(tokens @ first.weight.T + first.bias)
    outer = torch.relu(inner @ second.weight.T + second.bias)
    found = torch.cat(head.token_vectors(tokens, offsets), dim=1)
    torch.testing.assert_close(found, torch.cat([tokens, inner, outer], dim=1))


@pytest.mark.parametrize(("d", "h", "total"), [(4096, 64, 9_191_681), (768, 128, None)])
def test_without_a_graph_the_head_has_the_parameters_of_table_15(d, h, total):
    fused = d + 2 * h
    layers = [(d, h), (h, h), (fused, max(128, fused // 2)), (max(128, fused // 2), 1)]
    counted = sum(a * b + b for a, b in layers)
    assert total in (None, counted)
    if total is None:
        head = GlotHead(conv="linear", hidden=h, n_convs=2).build(d, torch.Generator())
        assert head.n_parameters == counted
