"""What holds for every graph encoder, and classes of torch-geometric: each runs, or says why it does not."""

import importlib
import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError

from permafrost.stages import plugins
from permafrost.stages.graph_encoders.batch import GraphBatch
from permafrost.stages.graph_encoders.encoder import (
    GRAPH_ENCODERS,
    GraphEncoder,
    GraphEncoderConfig,
)
from permafrost.stages.graph_encoders.kinds.gcn import GcnEncoder
from permafrost.stages.graph_encoders.kinds.gin import GinEncoder
from permafrost.stages.graph_encoders.kinds.pyg_relational import CLASSES, PygRelational
from permafrost.stages.graph_encoders.kinds.relational_attention import RelationalAttention
from permafrost.stages.graph_encoders.module import GraphModule
from permafrost.stages.graph_encoders.readout import (
    GRAPH_READOUTS,
    GraphReadout,
    GraphReadoutConfig,
)
from permafrost.stages.graph_encoders.readouts.attention import AttentionReadout
from permafrost.stages.graph_encoders.readouts.mean import MeanReadout
from permafrost.storage.errors import InputError
from tests.stages.graph_encoders.random_graphs import (
    D_NODES,
    D_QUERY,
    D_TEXT,
    N_RELATIONS,
    SIZES,
    graph_alone,
    make_graphs,
    no_graphs,
    padded,
    relabelled,
    reordered,
)

RUN: dict[str, dict[str, Any]] = {
    "CGConv": {},
    "FastRGCNConv": {"num_bases": 3},
    "FiLMConv": {},
    "GATConv": {"heads": 2, "dropout": 0.3},
    "GATv2Conv": {"heads": 4, "dropout": 0.3},
    "GENConv": {"norm": "layer"},
    "GINEConv": {},
    "GeneralConv": {"attention": True},
    "HEATConv": {"heads": 2, "dropout": 0.3},
    "HGTConv": {"heads": 2},
    "NNConv": {},
    "PDNConv": {"hidden_channels": 4},
    "PNAConv": {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": [0, 3, 5, 2]},
    "RGATConv": {"heads": 2, "dropout": 0.3},
    "RGCNConv": {"num_blocks": 2},
    "ResGatedGraphConv": {},
    "TransformerConv": {"heads": 2, "beta": True, "dropout": 0.3},
}
"""Classes of torch-geometric that run, with arguments."""
IGNORE_RELATIONS = {
    *(
        "AGNNConv",
        "APPNP",
        "ARMAConv",
        "AntiSymmetricConv",
        "ChebConv",
        "ClusterGCNConv",
        "DNAConv",
    ),
    *("DirGNNConv", "EGConv", "EdgeConv", "FAConv", "FeaStConv", "GCN2Conv", "GCNConv", "GINConv"),
    *("GatedGraphConv", "GraphConv", "LEConv", "LGConv", "MFConv", "MixHopConv", "PANConv"),
    *("SAGEConv", "SGConv", "SSGConv", "SimpleConv", "SuperGATConv", "TAGConv", "WLConv"),
    "WLConvContinuous",
}
"""Classes that read neither relations nor attributes of edges."""
SMALL: dict[str, Any] = {"hidden": 8, "n_layers": 2}
ENCODERS: dict[str, GraphEncoder] = {
    "attention": RelationalAttention(**SMALL),
    "qa_gnn": RelationalAttention(
        **SMALL, softmax="outgoing_times_degree", scale="head", norm="batch", relevance="score"
    ),
    "gcn": GcnEncoder(**SMALL),
    "gcn added": GcnEncoder(**SMALL, relations="added"),
    "gin": GinEncoder(**SMALL, residual="none"),
    "gin added": GinEncoder(**SMALL, relations="added"),
    **{
        name: PygRelational(hidden=8, n_layers=1, name=name, args=args)
        for name, args in RUN.items()
    },
}
by_name = pytest.mark.parametrize("name", ENCODERS)


def build(config: GraphEncoder, seed: int = 5) -> GraphModule:
    return config.build(D_NODES, D_QUERY, N_RELATIONS, torch.Generator().manual_seed(seed))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.few(8)
@by_name
def test_a_graph_alone_in_any_order_and_beside_padding_has_the_same_vectors(name: str) -> None:
    module = build(ENCODERS[name]).double().eval()
    batch = make_graphs()
    with torch.no_grad():
        found = module(batch)
        assert found.shape == (batch.n_nodes, module.d_out)
        for graph in range(len(SIZES)):
            close(module(graph_alone(batch, graph)), found[batch.graph_of_node == graph])
        draw = torch.Generator().manual_seed(7)
        nodes = torch.randperm(batch.n_nodes, generator=draw)
        edges = torch.randperm(len(batch.source), generator=draw)
        mixed = relabelled(batch, nodes, edges)
        close(module(mixed), found[nodes])
        close(module(padded(batch, 3))[: batch.n_nodes], found)
        vector = MeanReadout().build(module.d_out, D_TEXT, draw).double().eval()
        expected = vector(found, batch)
        close(vector(module(mixed), mixed), expected)
        close(vector(module(padded(batch, 3)), padded(batch, 3)), expected)


@pytest.mark.few(8)
@by_name
def test_weights_and_draws_depend_on_the_seed_alone_also_side_by_side(name: str) -> None:
    config, batch = ENCODERS[name], make_graphs(dtype=torch.float32)

    def trained(seed: int) -> list[torch.Tensor]:
        module = build(config, seed).train()
        module(batch).square().mean().backward()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        return [*module.state_dict().values(), *gradients, module(batch).detach()]

    torch.manual_seed(1)
    state = torch.get_rng_state()
    alone = [trained(seed) for seed in (0, 1)]
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    torch.manual_seed(2)
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(trained, [0, 1]))
    for found, expected in zip(together, alone, strict=True):
        assert all(map(torch.equal, found, expected))
    assert not torch.equal(alone[0][-1], alone[1][-1])


@pytest.mark.few(8)
@by_name
def test_dropout_goes_on_from_a_saved_state_and_is_off_in_evaluation(name: str) -> None:
    batch, module = make_graphs(dtype=torch.float32), build(ENCODERS[name]).train()
    first = module(batch)
    assert not torch.equal(module(batch), first)
    again = build(ENCODERS[name], 6).train()
    again.draws = build(ENCODERS[name]).draws  # the seed is of the config, not of the state
    for mine, yours in zip(again.modules(), build(ENCODERS[name]).modules(), strict=True):
        if hasattr(yours, "seed"):
            mine.seed = yours.seed
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(batch), module(batch))
    assert torch.equal(again.eval()(batch), module.eval()(batch))


@by_name
def test_relations_and_features_reach_the_nodes(name: str) -> None:
    """And nothing reaches a node with no edge but its own features."""
    module = build(ENCODERS[name]).double().eval()
    batch = make_graphs()
    with torch.no_grad():
        found = module(batch)
        other = module(replace(batch, relation=(batch.relation + 1) % N_RELATIONS))
        is_moved = (other - found).abs().amax(dim=1) > 1e-9
        assert bool(is_moved.any()) == (name not in ("gcn", "gin"))
        isolated = torch.ones(batch.n_nodes, dtype=torch.bool)
        isolated[torch.cat([batch.source, batch.target])] = False
        assert not bool((is_moved & isolated).any())
        query = replace(batch, query_features=batch.query_features + 1)
        moved = (module(query) - found).abs().amax(dim=1) > 1e-9
        assert bool(moved[batch.query_node].all())
        assert not bool(moved[isolated & ~batch.is_query].any())


@by_name
@pytest.mark.parametrize("readout", [MeanReadout(), AttentionReadout()], ids=["mean", "pooling"])
def test_choices_in_another_order_have_the_same_scores(name: str, readout: GraphReadout) -> None:
    """Two questions of two choices: vectors, and so scores, go with their choices."""
    draw = torch.Generator().manual_seed(3)
    module = build(ENCODERS[name]).double().eval()
    vector = readout.build(module.d_out, D_TEXT, draw).double().eval()
    batch, order = make_graphs(), torch.tensor([1, 0, 2, 3])
    swapped = reordered(batch, order)
    found, other = (vector(module(one), one).detach() for one in (batch, swapped))
    close(other, found[order])
    assert float((found[0] - found[1]).abs().max()) > 1e-3


@by_name
def test_a_batch_without_graphs(name: str) -> None:
    batch, module = no_graphs(make_graphs(dtype=torch.float32)), build(ENCODERS[name]).train()
    states = module(batch)
    assert states.shape == (0, module.d_out)
    for readout in (MeanReadout(), AttentionReadout()):
        vector = readout.build(module.d_out, D_TEXT, torch.Generator())
        vectors = vector(module(batch), batch)
        assert vectors.shape == (0, vector.d_out)
        vectors.sum().backward()


@by_name
def test_a_query_node_alone(name: str) -> None:
    batch = graph_alone(make_graphs(dtype=torch.float32), 1)
    module = build(ENCODERS[name]).train()
    module(batch).sum().backward()
    (gradient,) = [p.grad for n, p in module.named_parameters() if n == "inputs.query.weight"]
    assert gradient is not None
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(
    "name", ["attention", "qa_gnn", "gcn", "gcn added", "gin", "gin added", "GATv2Conv"]
)
def test_it_runs_in_bfloat16_whole_and_by_autocast(name: str) -> None:
    batch = make_graphs(dtype=torch.float32)
    module = build(ENCODERS[name])
    expected = module.eval()(batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        found = module(batch)
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)
    half = module.to(torch.bfloat16)
    found = half(batch.to("cpu", torch.bfloat16))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)
    half.train()(batch.to("cpu", torch.bfloat16)).float().square().mean().backward()
    assert all(bool(p.grad.isfinite().all()) for p in half.parameters() if p.grad is not None)


@by_name
def test_it_trains_by_autocast_to_bfloat16(name: str) -> None:
    batch, module = make_graphs(dtype=torch.float32), build(ENCODERS[name]).train()
    readout = AttentionReadout().build(module.d_out, D_TEXT, torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        out = readout(module(batch), batch)
    out.float().square().mean().backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert any(float(g.abs().max()) > 0 for g in gradients)


def test_every_class_of_torch_geometric_runs_or_is_refused() -> None:
    module = importlib.import_module(CLASSES.module)
    classes = {name for name in module.__all__ if inspect.isclass(getattr(module, name))}
    groups = (RUN.keys(), IGNORE_RELATIONS, CLASSES.refused.keys())
    assert set().union(*groups) == classes
    assert sum(map(len, groups)) == len(classes)


@pytest.mark.parametrize("name", sorted(IGNORE_RELATIONS | CLASSES.refused.keys()))
def test_a_class_that_is_refused_says_why(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PygRelational(name=name)
    assert name in str(caught.value)
    reason = CLASSES.refused.get(name, "it would ignore the relations of a graph")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        (
            "RGCNConv",
            {"num_relations": 3},
            "gets its argument num_relations from the graph encoder",
        ),
        (
            "FiLMConv",
            {"num_relations": 3},
            "gets its argument num_relations from the graph encoder",
        ),
        ("RGATConv", {"edge_dim": 3}, "gets its argument edge_dim from the graph encoder"),
        ("CGConv", {"dim": 3}, "gets its argument dim from the graph encoder"),
        ("RGCNConv", {"is_sorted": True}, "leave is_sorted out"),
        ("RGCNConv", {"num_base": 3}, "has no argument num_base"),
        ("RGCN", {}, "no convolution 'RGCN'; the closest are RGCNConv"),
        ("RGCNConv", {"num_blocks": 3}, "does not run"),
        ("RGATConv", {"heads": 3}, "24 wide where hidden, 8 here"),
        ("PDNConv", {}, "PDNConv needs hidden_channels in args"),
    ],
)
def test_wrong_arguments_are_named(name: str, args: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValidationError, InputError)) as caught:
        build(PygRelational(**SMALL, name=name, args=args))
    assert reason in str(caught.value)


class Holder(BaseModel):
    encoder: GraphEncoderConfig
    readout: GraphReadoutConfig = MeanReadout()


MINE = '''
"""Ours, in a file of a user."""

from typing import Literal

from permafrost.stages.graph_encoders.encoder import GraphEncoder, GraphModule
from permafrost.stages.graph_encoders.inputs import InputProjection
from permafrost.stages.graph_encoders.readout import GraphReadout, ReadoutModule


class StartEncoder(GraphEncoder):
    kind: Literal["start"] = "start"
    hidden: int = 4

    def build(self, d_nodes, d_query, n_relations, draw):
        return Start(self.hidden, d_nodes, d_query, draw)


class Start(GraphModule):
    def __init__(self, hidden, d_nodes, d_query, draw):
        super().__init__()
        self.d_out = hidden
        self.inputs = InputProjection(d_nodes, d_query, hidden, draw)

    def forward(self, batch):
        return self.inputs(batch)


class QueryReadout(GraphReadout):
    kind: Literal["query"] = "query"

    def build(self, d_states, d_text, draw):
        return Query()


class Query(ReadoutModule):
    def forward(self, states, batch):
        return states[batch.query_node]
'''


def test_a_file_adds_an_encoder_and_a_readout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    ours = set(GRAPH_ENCODERS.kinds()), set(GRAPH_READOUTS.kinds())
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    plugins.use_files([path])
    found = set(GRAPH_ENCODERS.kinds()), set(GRAPH_READOUTS.kinds())
    assert found == (ours[0] | {"start"}, ours[1] | {"query"})
    held = Holder.model_validate(
        {"encoder": {"kind": "start", "hidden": 3}, "readout": {"kind": "query"}}
    )
    batch: GraphBatch = make_graphs(dtype=torch.float32)
    module = build(held.encoder)
    assert module.attention(batch) is None
    readout = held.readout.build(3, D_TEXT, torch.Generator())
    assert torch.equal(readout(module(batch), batch), module(batch)[batch.query_node])
