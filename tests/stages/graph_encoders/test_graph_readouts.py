"""Readouts equal the paper's and QA-GNN's, graph by graph; and the adapter is two layers with a ReLU."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from permafrost.stages.graph_encoders.adapter import Adapter
from permafrost.stages.graph_encoders.readouts.attention import AttentionReadout
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout
from permafrost.stages.heads.directed_draws import DirectedDraws
from permafrost.storage.errors import InputError
from tests.stages.graph_encoders.random_graphs import D_TEXT, make_graphs, padded

WIDTH = 8


def build(config, d_text=D_TEXT):
    return config.build(WIDTH, d_text, torch.Generator().manual_seed(3)).double()


def states_of(batch):
    draw = torch.Generator().manual_seed(4)
    return torch.randn(batch.n_nodes, WIDTH, generator=draw).double()


def mlp(perceptron, row):
    hidden = functional.gelu(perceptron.first(row))
    return perceptron.second(functional.dropout(hidden, perceptron.p, perceptron.training))


def mean_by_graph(module, states, batch):
    for graph in range(batch.n_graphs):
        query = int(batch.query_node[graph])
        own = (batch.graph_of_node == graph).nonzero()[:, 0].tolist()
        if module.config.query_node == "left_out":
            own.remove(query)
        mean = states[own].sum(dim=0) / max(len(own), 1)
        yield torch.cat([states[query], mean, batch.text_features[graph]])


def attention_by_graph(module, states, batch):
    heads = module.config.heads
    for graph in range(batch.n_graphs):
        query = int(batch.query_node[graph])
        own = (batch.graph_of_node == graph).nonzero()[:, 0].tolist()
        own = [row for row in own if row != query] or [query]
        asks = module.query(batch.text_features[graph]).view(heads, -1)
        keys, values = (
            f(states[own]).view(len(own), heads, -1) for f in (module.key, module.value)
        )
        alpha = ((asks * keys).sum(dim=2) / (WIDTH // heads) ** 0.5).softmax(dim=0)
        pooled = (alpha[:, :, None] * values).sum(dim=0).flatten()
        yield torch.cat([states[query], pooled, batch.text_features[graph]])


@pytest.mark.parametrize(
    ("config", "by_graph"),
    [
        (MeanReadout(dropout=0.4), mean_by_graph),
        (MeanReadout(query_node="in", dropout=0), mean_by_graph),
        (AttentionReadout(dropout=0), attention_by_graph),
        (AttentionReadout(heads=4, dropout=0), attention_by_graph),
    ],
)
def test_a_readout_is_its_formula_with_gradients(config, by_graph):
    batch, module = make_graphs(), build(config).train()
    states = states_of(batch).requires_grad_()
    text = batch.text_features.clone().requires_grad_()
    batch = replace(batch, text_features=text)
    with DirectedDraws(torch.Generator().manual_seed(module.draws.seed + 1)):
        expected = mlp(module.perceptron, torch.stack(list(by_graph(module, states, batch))))
    found = module(states, batch)
    inputs = [states, text, *module.parameters()]
    gradients = [torch.autograd.grad(out.square().sum(), inputs) for out in (found, expected)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    # A constant added to every key changes no softmax, so that alone has no gradient.
    names = ["states", "text", *(name for name, _ in module.named_parameters())]
    lost = {n for n, g in zip(names, gradients[0], strict=True) if float(g.abs().max()) < 1e-12}
    assert lost <= {"key.bias"}


@pytest.mark.parametrize("config", [MeanReadout(), AttentionReadout()])
def test_padding_and_the_graphs_beside_change_nothing(config):
    batch, module = make_graphs(), build(config).eval()
    states = states_of(batch)
    more = padded(batch, 3)
    there = torch.cat([states, states.new_full((3, WIDTH), 1e3)])
    torch.testing.assert_close(module(there, more), module(states, batch), rtol=0, atol=1e-12)
    moved = torch.where((batch.graph_of_node == 2)[:, None], states + 1, states)
    changed = (module(moved, batch) - module(states, batch)).abs().amax(dim=1) > 1e-6
    assert changed.tolist() == [False, False, True, False]


def test_the_weights_of_attention_pooling_sum_to_1_without_the_query_node():
    batch = make_graphs()
    weights = build(AttentionReadout()).weights(states_of(batch), batch)
    sums = torch.zeros(4).double().index_add(0, batch.graph_of_node, weights)
    torch.testing.assert_close(sums, torch.ones(4).double(), rtol=0, atol=1e-12)
    alone, others = batch.query_node[1], batch.query_node[[0, 2, 3]]
    assert float(weights[alone]) == 1
    assert float(weights[others].abs().max()) == 0
    assert build(MeanReadout()).weights(states_of(batch), batch) is None


def test_attention_pooling_drops_attention_values_and_hidden_units():
    batch = make_graphs()
    states = states_of(batch)
    module = build(AttentionReadout(dropout=0.5)).train()
    assert not torch.equal(module(states, batch), module(states, batch))
    again = build(AttentionReadout(dropout=0.5)).train()
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(states, batch), module(states, batch))
    assert torch.equal(module.eval()(states, batch), again.eval()(states, batch))


def test_a_readout_of_the_graph_alone():
    batch = make_graphs()
    batch = replace(batch, text_features=batch.text_features[:, :0])
    assert build(MeanReadout(), 0)(states_of(batch), batch).shape == (4, WIDTH)
    with pytest.raises(InputError, match="asks with the text"):
        build(AttentionReadout(), 0)


def test_attention_heads_that_do_not_divide_the_width():
    with pytest.raises(InputError, match="8 wide and the readout has 3 attention heads"):
        build(AttentionReadout(heads=3))


@pytest.mark.parametrize("hidden", [None, 5])
def test_the_adapter_is_two_layers_with_a_relu(hidden):
    adapter = Adapter(WIDTH, 12, torch.Generator().manual_seed(0), hidden)
    rows = states_of(make_graphs()).float()
    w1, b1, w2, b2 = adapter.parameters()
    assert w1.shape == (hidden or WIDTH, WIDTH)
    expected = (rows @ w1.t() + b1).clamp_min(0) @ w2.t() + b2
    torch.testing.assert_close(adapter(rows), expected)
    assert adapter(rows).shape == (len(rows), 12)
