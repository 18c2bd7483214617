import pytest
import torch

from permafrost.stages.heads.graph import token_graph
from permafrost.stages.heads.graph.graph_attention import GraphAttention
from permafrost.stages.heads.graph.token_graph import build_blocks
from tests.stages.heads.batches import make_batch, passes_gradcheck
from tests.stages.heads.pyg_reference import convolve, edge_index, gat_conv, sentences

RAGGED = [23, 1, 7, 40, 1, 40, 12]


def _conv(d_in, d_out, dtype=torch.float64):
    conv = GraphAttention(d_in, d_out, torch.Generator().manual_seed(3)).to(dtype)
    torch.nn.init.normal_(conv.bias, generator=torch.Generator().manual_seed(4))
    return conv


def _reference(conv, tokens, offsets, tau):
    layer = gat_conv(conv)
    parts = [convolve(layer, s, edge_index(s.detach(), tau)) for s in sentences(tokens, offsets)]
    return layer, torch.cat(parts)


@pytest.mark.parametrize("tau", [-1.5, 0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("lengths", [[12], [1], [20, 20, 20], RAGGED])
def test_output_and_every_gradient_equal_gat_conv(lengths, tau):
    tokens, offsets = make_batch(lengths, 6)
    tokens.requires_grad_()
    conv = _conv(6, 5)
    ours = conv(tokens, build_blocks(tokens, offsets, tau))
    layer, theirs = _reference(conv, tokens, offsets, tau)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    pull = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5), dtype=ours.dtype)
    mine = torch.autograd.grad(ours, [tokens, *conv.parameters()], pull)
    yours = torch.autograd.grad(
        theirs,
        [
            tokens,
            layer.lin.weight,
            layer.att_src,
            layer.att_dst,
            layer.lin_edge.weight,
            layer.att_edge,
            layer.bias,
        ],
        pull,
        # With single tokens only, torch-geometric drops the edge attributes.
        materialize_grads=True,
        allow_unused=True,
    )
    for one, other in zip(mine, yours, strict=True):
        torch.testing.assert_close(one, other.reshape(one.shape), rtol=1e-9, atol=1e-10)


def test_isolated_tokens_among_connected_ones_equal_gat_conv():
    tokens, offsets = make_batch([8, 5], 6, shared=4.0)
    tokens[3], tokens[9] = -tokens[3], 0.0
    conv = _conv(6, 4)
    ours = conv(tokens, build_blocks(tokens, offsets, 0.5))
    _, theirs = _reference(conv, tokens, offsets, 0.5)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours[3], conv.weight @ tokens[3] + conv.bias)


def test_the_written_gradient_passes_gradcheck(monkeypatch):
    monkeypatch.setitem(token_graph.PAIRS, "cpu", 30)  # several blocks
    tokens, offsets = make_batch([4, 1, 3, 5], 3)
    conv = _conv(3, 2)
    blocks = build_blocks(tokens, offsets, 0.2)
    assert len(blocks) > 1
    assert passes_gradcheck(conv, tokens, blocks)


def test_from_tau_one_on_a_convolution_is_linear_per_token():
    tokens, offsets = make_batch(RAGGED, 6)
    conv = _conv(6, 5)
    out = conv(tokens, build_blocks(tokens, offsets, 1.0))
    torch.testing.assert_close(out, tokens @ conv.weight.t() + conv.bias)


def test_scores_far_apart_do_not_overflow():
    tokens, offsets = make_batch([20], 6, dtype=torch.float32)
    conv = _conv(6, 5, torch.float32)
    out = conv(1e4 * tokens, build_blocks(tokens, offsets, 0.3))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("pairs", [1, 700, 1 << 19])
def test_block_size_changes_rounding_only(monkeypatch, pairs):
    tokens, offsets = make_batch(RAGGED, 6)
    conv = _conv(6, 5)
    expected = conv(tokens, build_blocks(tokens, offsets, 0.3))
    monkeypatch.setitem(token_graph.PAIRS, "cpu", pairs)
    monkeypatch.setitem(token_graph.COPIED, "cpu", pairs)
    found = conv(tokens, build_blocks(tokens, offsets, 0.3))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
