import pytest
import torch

from permafrost.stages.heads import GlotHead, ScorerHead
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.stages.heads.graph.token_graph import edges
from permafrost.stages.heads.pooling import Classifier
from tests.stages.heads.batches import make_batch, shift_normalisation
from tests.stages.heads.pyg_reference import pool_texts, pyg_layer, sentences, weights

LENGTHS = [14, 1, 30, 9, 30]
JUMPING = ("cat", "max", "mean", "none")
CONVS = [
    {"conv": "gat"},
    {"conv": "gat", "heads": 2},
    {"conv": "gcn"},
    {"conv": "gin"},
    {"conv": "gin_plain"},
]
each_conv = pytest.mark.parametrize("conv", CONVS, ids=["gat", "gat-2", "gcn", "gin", "gin_plain"])


def _head(width=6, seed=2, **settings):
    """A head in use: batch normalisation takes running statistics, which are not those of a fresh one."""
    config = GlotHead(**({"hidden": 4, "tau": 0.3} | settings))
    head = config.build(width, torch.Generator().manual_seed(seed)).double().eval()
    for norm in _norms(head):
        shift_normalisation(norm)
    return head


def _norms(module):
    return [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm1d)]


@pytest.mark.few(16)
@pytest.mark.parametrize(
    "settings",
    [{"jumping": jumping, "conv": conv} for jumping in JUMPING for conv in ("gat", "gin")]
    + [conv | {"tau": tau} for conv in CONVS for tau in (-1.1, 0.3, 0.8, 1.1)]
    + [{"conv": "gin", "n_convs": n} for n in (1, 4)]
    + [{"project": 3}, {"project": 9, "conv": "gcn", "jumping": "max"}],
    ids=lambda settings: " ".join(str(value) for value in settings.values()),
)
@pytest.mark.parametrize("training", [True, False], ids=["training", "use"])
def test_vectors_weights_and_every_gradient_equal_glot_on_torch_geometric(settings, training):
    tokens, offsets = make_batch(LENGTHS, 6)
    head = _head(**settings).train(training)
    layers = [pyg_layer(conv) for conv in head.convs]
    expected, shares = pool_texts(head, layers, list(sentences(tokens, offsets)), head.config.tau)
    found = head(tokens, offsets)
    torch.testing.assert_close(found, expected)
    for mine, yours in zip(_norms(head), _norms(torch.nn.ModuleList(layers)), strict=True):
        torch.testing.assert_close(mine.state_dict(), yours.state_dict())
    torch.testing.assert_close(head.token_weights(tokens, offsets), shares)
    shared = list(head.readout.parameters())
    if head.projection is not None:
        shared += list(head.projection.parameters())
    convs = [parameter for conv in head.convs for parameter in conv.parameters()]
    assert len(shared + convs) == len(list(head.parameters()))
    mine = torch.autograd.grad(found.square().sum(), shared + convs)
    yours = torch.autograd.grad(
        expected.square().sum(),
        shared + [parameter for layer in layers for parameter in weights(layer)],
        # Without edges torch-geometric drops the edge attributes.
        materialize_grads=True,
        allow_unused=True,
    )
    for one, other in zip(mine, yours, strict=True):
        torch.testing.assert_close(one, other.reshape(one.shape), rtol=1e-8, atol=1e-10)


def test_the_graph_of_a_projecting_head_is_that_of_the_raw_tokens():
    tokens, offsets = make_batch([12], 6)
    tokens[:, 0] = 1.0
    degrees = torch.bincount(edges(tokens, offsets, 0.5)[1], minlength=12)
    assert len(degrees.unique()) > 1, "not the complete graph that equal rows would have"
    # Projected to (1, 0), all tokens are equal; a GIN that hands through the sums counts neighbours.
    head = _head(conv="gin_plain", n_convs=1, project=2, tau=0.5)
    for parameter in (head.projection.weight, *head.convs.parameters()):
        torch.nn.init.zeros_(parameter)
    head.projection.weight.data[0, 0] = 1.0
    head.convs[0].first.weight.data[0, 0] = 1.0
    head.convs[0].second.weight.data[0, 0] = 1.0
    projected, counted = head.token_vectors(tokens, offsets)
    assert projected.tolist() == [[1.0, 0.0]] * 12, "cat keeps the projected tokens"
    assert counted[:, 0].tolist() == degrees.tolist()


def test_the_whole_head_passes_gradcheck():
    tokens, offsets = make_batch([4, 1, 6], 3)
    head = _head(width=3, hidden=2)
    # The readout alone has 128 hidden units; its own test covers it, so take the convolutions.
    variables = [parameter for conv in head.convs for parameter in conv.parameters()]
    assert torch.autograd.gradcheck(lambda *_: head(tokens, offsets), variables)


def test_without_convolutions_glot_is_the_scorer_with_the_same_weights():
    tokens, offsets = make_batch(LENGTHS, 300)
    glot = _head(width=300, n_convs=0)
    scorer = ScorerHead(hidden=150).build(300, torch.Generator()).double()
    scorer.load_state_dict(glot.state_dict())
    assert torch.equal(glot(tokens, offsets), scorer(tokens, offsets))


@each_conv
def test_a_batch_equals_its_texts_one_by_one(conv):
    tokens, offsets = make_batch(LENGTHS, 6)
    head = _head(**conv)
    single = [head(s, torch.tensor([0, len(s)])) for s in sentences(tokens, offsets)]
    torch.testing.assert_close(head(tokens, offsets), torch.cat(single))


@each_conv
def test_permuting_tokens_permutes_token_vectors_and_keeps_the_text_vector(conv):
    tokens, offsets = make_batch([25], 6)
    head = _head(**conv)
    order = torch.randperm(25, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(tokens[order], offsets), head(tokens, offsets))
    mine = torch.cat(head.token_vectors(tokens[order], offsets), dim=1)
    yours = torch.cat(head.token_vectors(tokens, offsets), dim=1)
    torch.testing.assert_close(mine, yours[order])


@each_conv
@pytest.mark.parametrize("tau", [1.0, 1.1])
def test_from_tau_one_on_tokens_do_not_influence_each_other(conv, tau):
    tokens, offsets = make_batch([10, 4], 6)
    head = _head(tau=tau, **conv)
    before = torch.cat(head.token_vectors(tokens, offsets), dim=1)
    tokens[3] = 50.0
    after = torch.cat(head.token_vectors(tokens, offsets), dim=1)
    others = [i for i in range(14) if i != 3]
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=0)


@each_conv
@pytest.mark.parametrize("n_convs", [1, 2, 3])
def test_a_token_reaches_exactly_as_many_steps_as_there_are_convolutions(conv, n_convs):
    # A path: each token is near its two neighbours only. Lengthening one keeps the graph.
    angles = torch.arange(9, dtype=torch.float64) * 0.5
    tokens = torch.stack([angles.cos(), angles.sin()], dim=1)
    offsets = torch.tensor([0, 9])
    tau = 0.8  # cos 0.5 = 0.88, cos 1.0 = 0.54
    assert edges(tokens, offsets, tau).shape[1] == 9 + 2 * 8
    head = _head(width=2, hidden=64, n_convs=n_convs, tau=tau, **conv)
    before = torch.cat(head.token_vectors(tokens, offsets), dim=1)
    longer = tokens.clone()
    longer[2] *= 3
    after = torch.cat(head.token_vectors(longer, offsets), dim=1)
    moved = (after != before).any(dim=1).tolist()
    assert moved == [abs(token - 2) <= n_convs for token in range(9)]


def test_widths_follow_the_jumping_mode():
    widths = {
        jumping: _head(jumping=jumping, n_convs=3).d_out
        for jumping in ("cat", "max", "mean", "none")
    }
    assert widths == {"cat": 6 + 3 * 4, "max": 4, "mean": 4, "none": 4}
    assert _head(project=5, n_convs=3).d_out == 5 + 3 * 4
    assert _head(project=5, n_convs=3, jumping="max").d_out == 4
    assert _head(project=5, n_convs=0).d_out == 5


@pytest.mark.parametrize(
    ("d_in", "hidden", "n_convs", "expected"),
    [
        (4096, 64, 1, 8_919_425),
        (4096, 64, 2, 9_192_193),
        (4096, 128, 2, 10_016_257),
        (4096, 256, 2, 11_738_113),
        (4096, 256, 4, 14_362_625),
        (4096, 64, 4, 9_750_017),
        (768, 128, 2, 641_281),
    ],
)
def test_parameter_counts_are_those_of_the_paper(d_in, hidden, n_convs, expected):
    head = GlotHead(hidden=hidden, n_convs=n_convs).build(d_in, torch.Generator())
    assert head.n_parameters == expected


def test_attention_heads_add_no_parameters_and_a_projection_adds_a_matrix():
    plain = _head(width=40, hidden=12).n_parameters
    assert _head(width=40, hidden=12, heads=4).n_parameters == plain
    # Jumping 'max' keeps the readout: the matrix comes, the first convolution reads 10 columns.
    narrow = _head(width=40, hidden=12, jumping="max", project=10).n_parameters
    whole = _head(width=40, hidden=12, jumping="max").n_parameters
    assert narrow == whole + 40 * 10 - 12 * (40 - 10)


def test_a_classifier_for_two_classes_on_4096_has_8194_parameters():
    classifier = Classifier(4096, 2, torch.Generator())
    assert sum(p.numel() for p in classifier.parameters()) == 8_194


@each_conv
def test_training_never_needs_the_gradient_of_the_tokens(conv):
    tokens, offsets = make_batch(LENGTHS, 6)
    head = _head(**conv)
    head(tokens, offsets).sum().backward()
    assert tokens.grad is None
    assert all(parameter.grad is not None for parameter in head.parameters())


@pytest.mark.parametrize(
    ("conv", "heads", "name", "args"),
    [("gat", 2, "GATConv", {"edge_dim": 1, "heads": 2}), ("gcn", 1, "GCNConv", {})],
)
@pytest.mark.parametrize("tau", [0.3, 1.1])
def test_a_convolution_of_ours_equals_torch_geometrics_by_name(conv, heads, name, args, tau):
    tokens, offsets = make_batch([9, 1, 14, 30], 6)
    draw = torch.Generator().manual_seed(2)
    settings = {"hidden": 8, "tau": tau, "jumping": "cat"}
    ours = GlotHead(conv=conv, heads=heads, **settings).build(6, draw).double()
    by_name = PygConv(name=name, args=args)
    theirs = GlotHead(conv=by_name, **settings).build(6, draw).double()
    theirs.readout.load_state_dict(ours.readout.state_dict())
    for mine, yours in zip(ours.convs, theirs.convs, strict=True):
        yours.layer.layer.load_state_dict(pyg_layer(mine).state_dict())
    assert ours.n_parameters == theirs.n_parameters
    rows = [tokens.clone().requires_grad_() for _ in range(2)]
    found, expected = ours(rows[0], offsets), theirs(rows[1], offsets)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for vectors in (found, expected):
        vectors.square().sum().backward()
    torch.testing.assert_close(rows[0].grad, rows[1].grad, rtol=1e-9, atol=1e-9)
