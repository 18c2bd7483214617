"""Every class of torch-geometric that a head may name: it runs, or it is refused and says why."""

import importlib
import inspect

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.directed_draws import DirectedDraws
from permafrost.stages.heads.graph.pyg_conv import CLASSES, PygConv
from permafrost.stages.heads.pyg_pool import AGGREGATIONS, PygPoolHead
from permafrost.storage.errors import InputError
from tests.stages.heads.batches import make_batch

RAGGED = [4, 1, 7, 2, 4]
WIDTH = 6
CONVS = {
    "AGNNConv": {},
    "APPNP": {"K": 2, "alpha": 0.1, "dropout": 0.3},
    "ARMAConv": {"num_stacks": 2, "num_layers": 2, "dropout": 0.3},
    "AntiSymmetricConv": {},
    "CGConv": {},
    "ChebConv": {"K": 2},
    "ClusterGCNConv": {},
    "DirGNNConv": {"conv": {"name": "SAGEConv"}},
    "EGConv": {"num_heads": 2},
    "EdgeConv": {},
    "FAConv": {"dropout": 0.3},
    "FeaStConv": {"heads": 2},
    "FiLMConv": {},
    "GATConv": {"heads": 2, "dropout": 0.3},
    "GATv2Conv": {"heads": 4, "dropout": 0.3},
    "GCN2Conv": {"alpha": 0.1},
    "GCNConv": {},
    "GENConv": {},
    "GINConv": {},
    "GINEConv": {},
    "GMMConv": {"kernel_size": 2},
    "GPSConv": {"conv": {"name": "GATConv", "args": {"concat": False}}, "heads": 2, "dropout": 0.3},
    "GatedGraphConv": {"num_layers": 2},
    "GeneralConv": {"attention": True},
    "GraphConv": {},
    "HypergraphConv": {},
    "LEConv": {},
    "LGConv": {},
    "MFConv": {"max_degree": 5},
    "MixHopConv": {"powers": [0, 1]},
    "NNConv": {},
    "PDNConv": {"hidden_channels": 4},
    "PNAConv": {
        "aggregators": ["mean", "max"],
        "scalers": ["identity", "amplification"],
        "deg": [0, 3, 5, 2],
    },
    "ResGatedGraphConv": {},
    "SAGEConv": {"aggr": ["max", "softmax"]},
    "SGConv": {"K": 2},
    "SSGConv": {"alpha": 0.1},
    "SimpleConv": {},
    "TAGConv": {},
    "TransformerConv": {"heads": 2, "beta": True, "dropout": 0.3},
    "WLConvContinuous": {},
}
"""Those that run, with arguments."""
OFTEN = {
    "APPNP",
    "ChebConv",
    "DirGNNConv",
    "EdgeConv",
    "FAConv",
    "GATConv",
    "GCN2Conv",
    "SAGEConv",
    "TransformerConv",
}
"""One of each way to take edges, and what the papers name; the others are trained in the long tests."""
FIXED = {
    *(
        "AGNNConv",
        "APPNP",
        "AntiSymmetricConv",
        "CGConv",
        "DirGNNConv",
        "FAConv",
        "GCN2Conv",
        "GPSConv",
    ),
    *("LGConv", "SimpleConv", "WLConvContinuous"),
}
"""Those that keep the width of their input."""
POOLS = {
    "AttentionalAggregation": ({}, 6),
    "DeepSetsAggregation": ({}, 6),
    "DegreeScalerAggregation": (
        {"aggr": ["mean", "max"], "scaler": ["identity", "linear"], "deg": [0, 1, 1, 0, 2]},
        24,
    ),
    "GRUAggregation": ({"out_channels": 5}, 5),
    "GraphMultisetTransformer": ({"k": 2, "heads": 2}, 6),
    "LCMAggregation": ({}, 6),
    "LSTMAggregation": ({}, 6),
    "MLPAggregation": (
        {"max_num_elements": 8, "num_layers": 2, "hidden_channels": 5, "dropout": 0.3},
        6,
    ),
    "MaxAggregation": ({}, 6),
    "MeanAggregation": ({}, 6),
    "MedianAggregation": ({}, 6),
    "MinAggregation": ({}, 6),
    "MulAggregation": ({}, 6),
    "MultiAggregation": ({"aggrs": ["mean", "std"]}, 12),
    "PowerMeanAggregation": ({"learn": True}, 6),
    "QuantileAggregation": ({"q": [0.25, 0.75]}, 12),
    "Set2Set": ({"processing_steps": 2}, 12),
    "SetTransformerAggregation": ({"heads": 2, "num_seed_points": 2}, 12),
    "SoftmaxAggregation": ({"learn": True}, 6),
    "SortAggregation": ({"k": 3}, 18),
    "StdAggregation": ({}, 6),
    "SumAggregation": ({}, 6),
    "VarAggregation": ({}, 6),
    "VariancePreservingAggregation": ({}, 6),
}
"""Those that run, with arguments, and how wide their vectors of 6 numbers a token are."""


def _glot(name, args=None, edges="one", **settings):
    conv = PygConv(name=name, args=CONVS[name] if args is None else args, edges=edges)
    return GlotHead(conv=conv, **({"hidden": 8, "tau": 0.2} | settings))


def _build(config, width=WIDTH, seed=5):
    return config.build(width, torch.Generator().manual_seed(seed))


def _batch():
    return make_batch(RAGGED, WIDTH, dtype=torch.float32)


@pytest.mark.parametrize(("family", "run"), [(CLASSES, CONVS), (AGGREGATIONS, POOLS)])
def test_every_class_runs_or_is_refused(family, run):
    module = importlib.import_module(family.module)
    classes = {name for name in module.__all__ if inspect.isclass(getattr(module, name))}
    assert run.keys() | family.refused.keys() == classes
    assert not run.keys() & family.refused.keys()


@pytest.mark.parametrize(
    ("config", "name", "reason"),
    [(PygConv, *pair) for pair in CLASSES.refused.items()]
    + [(PygPoolHead, *pair) for pair in AGGREGATIONS.refused.items()],
)
def test_a_refused_class_is_named_with_the_reason(config, name, reason):
    with pytest.raises(ValidationError) as caught:
        config(name=name)
    assert name in str(caught.value)
    assert reason in str(caught.value)


def _trains_and_pools_each_text_alone(config):
    tokens, offsets = _batch()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    head, again = _build(config), _build(config)
    torch.manual_seed(2)
    other = _build(config)
    torch.manual_seed(1)
    for one in (again, other):
        assert all(map(torch.equal, head.state_dict().values(), one.state_dict().values()))
    rows = tokens.clone().requires_grad_()
    found = head.train()(rows, offsets)
    assert found.shape == (len(RAGGED), head.d_out)
    found.square().sum().backward()
    # With a gradient asked for as before: torch multiplies another way without.
    same = again.train()(tokens.clone().requires_grad_(), offsets)
    torch.testing.assert_close(same, found, rtol=0, atol=0)
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    assert rows.grad is not None
    assert rows.grad.isfinite().all()
    trained = [p for p in head.parameters() if p.grad is not None]
    assert head.n_parameters == 0 or trained
    loaded = _build(config, seed=6)
    loaded.load_state_dict(head.state_dict())
    together = head.eval()(tokens, offsets)
    torch.testing.assert_close(loaded.eval()(tokens, offsets), together, rtol=0, atol=0)
    for text, expected in zip(tokens.split(RAGGED), together, strict=True):
        alone = head(text, torch.tensor([0, len(text)]))
        torch.testing.assert_close(alone[0], expected, rtol=1e-4, atol=1e-5)
    return head


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name", [c if c in OFTEN else pytest.param(c, marks=pytest.mark.deep) for c in CONVS]
)
def test_a_convolution_trains_and_pools_each_text_alone(name):
    head = _trains_and_pools_each_text_alone(_glot(name))
    assert head.d_out == WIDTH + 2 * (WIDTH if name in FIXED else 8)
    conv = PygConv(name=name, args=CONVS[name])
    if conv.takes_weights or conv.takes_attributes:
        # Alone among them, it does not normalise what has weights.
        args = CONVS[name] | ({"normalize": False} if name == "FAConv" else {})
        _trains_and_pools_each_text_alone(_glot(name, args, edges="cosine"))


@pytest.mark.few(8)
@pytest.mark.parametrize("name", POOLS)
def test_an_aggregation_trains_and_pools_each_text_alone(name):
    args, width = POOLS[name]
    head = _trains_and_pools_each_text_alone(PygPoolHead(name=name, args=args))
    assert head.d_out == width


def test_cosines_change_what_a_convolution_that_is_given_them_says():
    tokens, offsets = _batch()
    for name in ("GCNConv", "GATv2Conv", "GINEConv"):
        one, other = (_build(_glot(name, {}, edges)).eval() for edges in ("one", "cosine"))
        shared = {k: v for k, v in other.state_dict().items() if k in one.state_dict()}
        one.load_state_dict(shared)
        found = one(tokens, offsets) - other(tokens, offsets)
        assert float(found.detach().abs().max()) > 1e-3, name


@pytest.mark.parametrize(
    ("config", "name", "args", "said"),
    [
        (PygConv, "GATv2", {}, "no convolution 'GATv2'; the closest are GATv2Conv"),
        (PygConv, "GATv2Conv", {"in_channels": 3}, "gets its argument in_channels from the head"),
        (PygConv, "GATv2Conv", {"head": 3}, "GATv2Conv has no argument head; GATv2Conv takes in_"),
        (PygConv, "GPSConv", {"heads": 4}, "needs conv in args"),
        (PygConv, "GPSConv", {"heads": 4, "conv": None}, "does not run"),
        (
            PygConv,
            "FeaStConv",
            {"heads": "two"},
            "wants heads to be int, not 'two'; FeaStConv takes",
        ),
        (PygConv, "GCNConv", {"cached": True}, "with cached would use"),
        (PygConv, "GATv2Conv", {"heads": 10**9}, "has 1000000000 in heads; a number here is"),
        (PygPoolHead, "QuantileAggregation", {"q": [0.5, float("nan")]}, "has nan in q"),
        (PygConv, "ChebConv", {}, "ChebConv needs K in args; ChebConv takes in_channels"),
        (PygConv, "AntiSymmetricConv", {"phy": 1}, "AntiSymmetricConv has no argument phy"),
        (PygConv, "GINConv", {"nn": 3}, "gets its argument nn from the head"),
        (PygConv, "GATv2Conv", {"edge_dim": 3}, "an edge of the token graph has one attribute"),
        (PygConv, "DirGNNConv", {"conv": {"name": "RGCNConv"}}, "edges of several kinds"),
        (PygConv, "DirGNNConv", {"conv": {"of": "GCNConv"}}, "{name: ..., args: {...}}"),
        (PygConv, "GPSConv", {"conv": "GCNConv"}, "wants conv to be"),
        (PygConv, "SAGEConv", {"aggr": "lstm"}, "reads the padding of a batch"),
        (PygConv, "SAGEConv", {"aggr": ["max", "MLPAggregation"]}, "reads the padding of a batch"),
        (PygConv, "DirGNNConv", {"conv": {"name": "SAGEConv", "args": {"aggr": "gru"}}}, "reads"),
        (PygPoolHead, "MultiAggregation", {"aggrs": ["mean", "gru"]}, "reads the padding"),
        (
            PygConv,
            "GPSConv",
            {"conv": {"name": "GCNConv"}, "heads": 2, "attn_type": "performer"},
            "attends to the padding of a batch",
        ),
        (PygPoolHead, "Set2Set", {}, "needs processing_steps in args"),
        (PygPoolHead, "SortAggregation", {"k": [3]}, "wants k to be int"),
        (PygPoolHead, "Set2Sets", {}, "no aggregation 'Set2Sets'; the closest are Set2Set"),
        (PygPoolHead, "SetTransformerAggregation", {"heads": 4}, "does not run"),
        (PygPoolHead, "LSTMAggregation", {"num_layer": 4}, "does not run"),
        (PygPoolHead, "SoftmaxAggregation", {"learned": True}, "has no argument learned"),
        (PygPoolHead, "SetTransformerAggregation", {"dropout": 0.1}, "MultiheadAttention"),
        (PygPoolHead, "LSTMAggregation", {"num_layers": 2, "dropout": 0.1}, "torch's LSTM"),
    ],
)
def test_wrong_arguments_are_named_with_what_the_class_takes(config, name, args, said):
    def use():
        made = config(name=name, args=args)
        head = GlotHead(conv=made) if config is PygConv else made
        head.require_width(WIDTH)

    with pytest.raises(ValueError) as caught:  # noqa: PT011 # pydantic's, or our own
        use()
    assert said in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"heads": 2}, "conv.args"),
        ({"edges": "cosine", "tau": -0.5}, "use a tau of 0 or more"),
    ],
)
def test_settings_of_glot_that_do_not_go_with_such_a_convolution(settings, said):
    with pytest.raises(ValidationError) as caught:
        _glot("GCNConv", **settings)
    assert said in str(caught.value)


def test_edges_without_weights_or_attributes_carry_no_cosine():
    with pytest.raises(ValidationError, match="neither weights nor attributes"):
        PygConv(name="SAGEConv", edges="cosine")


def test_attention_heads_share_the_width_and_have_to_divide_it():
    assert _build(_glot("GATv2Conv", {"heads": 4}, n_convs=1)).d_out == WIDTH + 8
    with pytest.raises(InputError, match="hidden, 8 here, has to be a multiple of 3"):
        _glot("GATv2Conv", {"heads": 3}).require_width(WIDTH)


@pytest.mark.parametrize(
    ("name", "args"),
    [("GENConv", {}), ("CGConv", {"batch_norm": True}), ("GPSConv", CONVS["GPSConv"])],
)
def test_a_training_batch_of_one_token_is_normalised_by_running_statistics(name, args):
    """As our own layers do; torch's batch normalisation refuses it."""
    head = _build(_glot(name, args)).train()
    rows = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(0))
    before = {k: v.clone() for k, v in head.state_dict().items() if "running" in k}
    assert before
    assert torch.isfinite(head(rows, torch.tensor([0, 1]))).all()
    after = head.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    tokens, offsets = _batch()
    head(tokens, offsets)
    assert any(not torch.equal(v, head.state_dict()[k]) for k, v in before.items())


def test_a_last_training_batch_of_one_text_is_pooled():
    args = {"max_num_elements": 8, "num_layers": 2, "hidden_channels": 8, "out_channels": 16}
    head = _build(PygPoolHead(name="MLPAggregation", args=args)).train()
    tokens = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(head(tokens, torch.tensor([0, 3]))).all()


def test_a_text_longer_than_an_aggregation_is_made_for_is_refused():
    tokens, offsets = _batch()
    head = _build(PygPoolHead(name="MLPAggregation", args={"max_num_elements": 6, "num_layers": 1}))
    with pytest.raises(InputError, match="a text has 7 tokens, but MLPAggregation is made for 6"):
        head(tokens, offsets)


def test_dropout_differs_from_call_to_call_and_the_count_of_calls_is_part_of_the_state():
    tokens, offsets = _batch()
    config = _glot("GATv2Conv", {"dropout": 0.25}, n_convs=1)
    head = _build(config).train()
    assert not torch.equal(head(tokens, offsets), head(tokens, offsets))
    again = _build(config).train()
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(tokens, offsets), head(tokens, offsets))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_directed_dropout_keeps_its_share_and_the_mean(p):
    rows = torch.ones(20_000)
    with DirectedDraws(torch.Generator().manual_seed(0)):
        found = functional.dropout(rows, p)
        unused = functional.dropout(rows, p, training=False)
    assert torch.equal(unused, rows)
    kept = found[found != 0]
    assert abs(len(kept) / len(rows) - (1 - p)) < 0.02
    if p < 1:
        torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)))


def test_what_cannot_be_directed_is_refused():
    with (
        DirectedDraws(torch.Generator()),
        pytest.raises(InputError, match="all threads share"),
    ):
        torch.rand_like(torch.ones(2))
