"""GT2VEC's attention equals a `MessagePassing` written edge by edge; the relations of its equations hold."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.kinds.relational_attention_module import (
    RelationalAttentionModule,
)
from permafrost.storage.errors import InputError
from tests.stages.graph_encoders.attention_reference import ReferenceEncoder
from tests.stages.graph_encoders.random_graphs import (
    D_NODES,
    D_QUERY,
    N_RELATIONS,
    make_graphs,
    padded,
)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 4, "dropout": 0.5},
    {"message": "target"},
    {"softmax": "outgoing_times_degree"},
    {"softmax": "incoming"},
    {"scale": "head"},
    {"codes": "one_hot"},
    {"relevance": "score"},
    {"norm": "batch"},
    # QA-GNN's layer, but for the residual.
    {"softmax": "outgoing_times_degree", "scale": "head", "codes": "one_hot", "norm": "batch"}
    | {"relevance": "score"},
]


def build(seed: int = 0, dtype: torch.dtype = torch.float64, **fields: Any):
    config = RelationalAttention.model_validate({"hidden": 8, "n_layers": 3, "heads": 2} | fields)
    draw = torch.Generator().manual_seed(seed)
    module = config.build(D_NODES, D_QUERY, N_RELATIONS, draw)
    assert isinstance(module, RelationalAttentionModule)
    return module.to(dtype)


@pytest.mark.few(8)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("fields", OPTIONS, ids=lambda fields: "-".join(map(str, fields.values())))
def test_it_equals_message_passing_edge_by_edge_with_its_gradients(fields, training):
    batch = make_graphs()
    ours = build(**fields).train(training)
    theirs = ReferenceEncoder(ours).train(training)
    weights = torch.randn(batch.n_nodes, 8, generator=torch.Generator().manual_seed(1)).double()
    found = dict[str, Any]()
    for name, module in (("theirs", theirs), ("ours", ours)):
        features = batch.features.clone().requires_grad_()
        query = batch.query_features.clone().requires_grad_()
        out = module(replace(batch, features=features, query_features=query))
        inputs = [features, query, *ours.parameters()]
        found[name] = [out, *torch.autograd.grad((out * weights).sum(), inputs)]
    names = ["states", "features", "query", *(name for name, _ in ours.named_parameters())]
    for name, one, other in zip(names, found["ours"], found["theirs"], strict=True):
        assert float(other.detach().abs().max()) > 0, name
        torch.testing.assert_close(
            one, other, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )
    if training and fields.get("norm") == "batch":
        pairs = [(ours.codes.perceptron, theirs.f_r), (ours.layers[1].update, theirs.layers[1].f_n)]
        for one, other in pairs:
            for name in ("running_mean", "running_var"):
                torch.testing.assert_close(getattr(one.norm, name), getattr(other[1], name))
    if not training:
        alpha = theirs.layers[-1].alpha.mean(dim=1)
        torch.testing.assert_close(ours.attention(batch), alpha, rtol=0, atol=1e-10)


def test_the_attention_of_a_source_sums_to_1_over_its_targets_and_itself():
    batch, module = make_graphs(), build().eval()
    every = torch.arange(batch.n_nodes)
    for softmax, end in (("outgoing", batch.source), ("incoming", batch.target)):
        attention = build(softmax=softmax).eval().attention(batch)
        sums = torch.zeros(batch.n_nodes).double().index_add(0, torch.cat([end, every]), attention)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)
    assert float(module.attention(batch).min()) > 0


def test_a_layer_without_f_n_is_the_identity():
    batch, module = make_graphs(), build(dropout=0.5).train()
    for layer in module.layers:
        torch.nn.init.zeros_(layer.update.second.weight)
        torch.nn.init.zeros_(layer.update.second.bias)
    assert torch.equal(module(batch), module.inputs(batch))


def test_what_a_message_reads():
    """With the printed target a node hears of its neighbours through alpha alone."""
    batch = make_graphs()
    for message, is_heard in (("source", True), ("target", False)):
        module = build(message=message, n_layers=1).eval()
        torch.nn.init.zeros_(module.layers[0].query.weight)
        torch.nn.init.zeros_(module.layers[0].query.bias)  # alpha is uniform
        moved = batch.features.clone()
        neighbour = int(batch.source[0])
        moved[neighbour] += 1
        before, after = module(batch), module(replace(batch, features=moved))
        others = [row for row in range(batch.n_nodes) if row != neighbour]
        assert torch.equal(before[others], after[others]) != is_heard


def test_padding_does_not_enter_batch_normalisation():
    batch, module, again = make_graphs(), *(build(norm="batch", dropout=0) for _ in range(2))
    found, other = module.train()(batch), again.train()(padded(batch, 3))
    torch.testing.assert_close(other[: batch.n_nodes], found, rtol=0, atol=1e-12)
    norms = [m.layers[0].update.norm for m in (module, again)]
    torch.testing.assert_close(norms[1].running_var, norms[0].running_var, rtol=0, atol=1e-12)


def test_a_single_node_is_normalised_by_the_running_statistics():
    batch = make_graphs([1, 1])
    alone = replace(
        batch.to("cpu"),
        **{
            n: getattr(batch, n)[:1]
            for n in ("features", "node_type", "graph_of_node", "relevance")
        },
        **{n: getattr(batch, n)[:1] for n in ("query_node", "query_features", "text_features")},
    )
    module = build(norm="batch", dropout=0)
    assert torch.equal(module.train()(alone), module.eval()(alone))


def test_settings_that_do_not_fit():
    with pytest.raises(ValidationError, match="hidden is 9 and heads is 2"):
        RelationalAttention(hidden=9)
    batch: GraphBatch = replace(make_graphs(), relevance=None)
    with pytest.raises(InputError, match="have none; score their nodes"):
        build(relevance="score")(batch)
