"""Options for what GT2VEC leaves open, each against its formula written out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from permafrost.flows.methods.graph_text import GraphTextMethod
from permafrost.stages.finetune.backbone_pass import read_states
from permafrost.stages.finetune.config import FinetuneConfig, FinetuneScoreConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.graph_batches import RandomRows, graph_batch
from permafrost.stages.finetune.item_graphs import graphs_of
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import build_module
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.stages.graph_encoders.readouts.mean_module import MeanReadoutModule
from permafrost.storage.errors import InputError
from tests.stages.finetune import graph_text_fits
from tests.stages.finetune.graph_text_fits import CORPORA, CPU, GT2VEC, Pairs, fit, tuned
from tests.stages.finetune.tiny_graphs import config_of, data_of, pairs, retrieval

pytestmark = pytest.mark.deep


def trainee(config: FinetuneConfig, data: FinetuneData) -> GraphTextTrainee:
    made = graph_text_fits.trainee(config, data)
    made.model.eval()
    return made


def unlike(data: FinetuneData) -> FinetuneData:
    """A second branch far from the first: a tiny backbone gives all texts nearly the same vector."""
    assert data.features.texts is not None
    drawn = RandomRows(data.features.texts.width, 4)
    return replace(data, features=replace(data.features, descriptions=drawn))


def loss_of(config: FinetuneConfig, data: FinetuneData) -> float:
    trained = trainee(config, data)
    return float(trained.loss(trained.batches(1)[0])[0].detach())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CORPORA)
def test_the_branches_losses_are_weighted(pair: Pairs, name: str) -> None:
    """Equation 6 with weights: a x graph + b x description + lambda x alignment."""
    data = unlike(data_of(CORPORA[name](), pair("bert").backbone))

    def loss(**model: object) -> float:
        return loss_of(config_of(data.corpus, {**GT2VEC, **model}), data)

    graph = loss(description="none")
    both = loss(align=None)
    described = both - graph
    small = loss(align=None, description_weight=0.01)
    assert small == pytest.approx(graph + 0.01 * described, rel=1e-5)
    small = loss(align=None, graph_weight=0.01)
    assert small == pytest.approx(0.01 * graph + described, rel=1e-5)
    aligned = (loss() - both) / 0.05
    weighted = loss(graph_weight=0.5, description_weight=3.0, lam=0.2)
    assert weighted == pytest.approx(0.5 * graph + 3 * described + 0.2 * aligned, rel=1e-4)


def info_nce(queries: Tensor, documents: Tensor) -> float:
    units = [functional.normalize(z.double(), dim=1) for z in (queries, documents)]
    total = 0.0
    for i, query in enumerate(units[0]):
        powers = [float((query @ document / 0.05).exp()) for document in units[1]]
        total -= float(np.log(powers[i] / sum(powers)))
    return total


def test_queries_may_be_paired_with_documents_of_the_other_branch(pair: Pairs) -> None:
    data = unlike(data_of(retrieval(), pair("bert").backbone))
    model = {**GT2VEC, "align": None, "graph_weight": 2.0}

    def config(branches: str) -> FinetuneConfig:
        loss = {"kind": "retrieval", "branches": branches}
        return config_of(data.corpus, model, loss=loss)

    trained = trainee(config("within"), data)
    batch = trained.batches(1)[0]
    found = trained.embeddings(batch.items, described=True)
    graph, words = found.branches
    queries, documents = batch.cases.items.data.reshape(-1, 2).T
    within = 2 * info_nce(graph[queries], graph[documents])
    within += info_nce(words[queries], words[documents])
    across = 2 * info_nce(graph[queries], words[documents])
    across += info_nce(words[queries], graph[documents])
    assert loss_of(config("within"), data) == pytest.approx(within, rel=1e-4)
    assert loss_of(config("across"), data) == pytest.approx(across, rel=1e-4)
    assert abs(across - within) > 0.01 * within


def test_a_readout_may_read_the_text_of_the_model_of_nodes(
    pair: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """g = MLP([query node ; mean of nodes ; text]): the third part, and the width of the first layer."""
    base = data_of(pairs(), pair("bert").backbone)
    texts, nodes = RandomRows(6, 8), RandomRows(6, 9)
    data = replace(base, features=replace(base.features, node_texts=texts))
    corpus, items = data.corpus, np.array([3, 0, 2])
    graphs = graphs_of(corpus)[items]
    stored, other = (
        graph_batch(corpus, data.features, items, graphs, "stored", readout)
        for readout in ("backbone", "nodes")
    )
    rows = corpus.items.column("text").to_numpy()[items]
    assert torch.equal(other.text_features, torch.from_numpy(texts.take(rows)))
    assert torch.equal(other.query_features, stored.query_features), "the query node is the LLM's"
    config = config_of(corpus, {**GT2VEC, "readout_text": "nodes"})
    trained = trainee(config, data)
    readout = trained.model.readout
    assert isinstance(readout, MeanReadoutModule)
    assert readout.perceptron.first.in_features == 2 * 8 + 6
    assert base.features.texts is not None
    default = build_module(config_of(corpus, GT2VEC), base).readout
    assert isinstance(default, MeanReadoutModule)
    assert default.perceptron.first.in_features == 2 * 8 + base.features.texts.width
    z = trained.embeddings(items).z
    changed = replace(data, features=replace(data.features, node_texts=nodes))
    assert not torch.equal(trainee(config, changed).embeddings(items).z, z)
    result = fit(config, data)
    assert score_finetuned(FinetuneScoreConfig(), tuned(result), data).metrics["dev"] is not None


def mapping(corpus: Any, model: dict[str, object], **changes: object) -> FinetuneConfig:
    return config_of(corpus, model, loss={"kind": "retrieval", "z_map": "linear"}, **changes)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["gt2vec", "qa_gnn", "text_only"])
def test_a_search_may_train_a_linear_map_of_embeddings(pair: Pairs, kind: str) -> None:
    data = data_of(retrieval(), pair("bert").backbone)
    model: dict[str, object] = {"kind": kind}
    if kind == "text_only":
        data = replace(data, live=None)
    config, plain = mapping(data.corpus, model), config_of(data.corpus, model)
    assert not config.trains_nothing
    items = np.arange(5)
    first, without = trainee(config, data), trainee(plain, data)
    z = without.embeddings(items).z
    assert torch.equal(first.embeddings(items).z, z), "it begins as the identity"
    width = z.shape[1]
    assert first.model.n_parameters == without.model.n_parameters + width**2
    assert first.model.z_map is not None
    matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first.model.z_map.weight.copy_(matrix)
    found = first.embeddings(items, described=kind == "gt2vec")
    torch.testing.assert_close(found.z, z @ matrix.t(), rtol=1e-4, atol=1e-3)
    if kind == "gt2vec":
        rows = data.features.descriptions
        assert rows is not None
        assert found.described is not None
        expected = torch.from_numpy(rows.take(items)) @ matrix.t()
        torch.testing.assert_close(found.described, expected, rtol=1e-4, atol=1e-3)
    result = fit(config, data)
    assert not torch.equal(result.state["z_map.weight"], torch.eye(width))
    assert score_finetuned(FinetuneScoreConfig(), tuned(result), data).metrics["dev"] == (
        result.best.dev_metric
    )


@pytest.mark.parametrize("name", ["pairs", "retrieval"])
@pytest.mark.parametrize("description", ["trained", "none"])
def test_figure_3c_may_be_of_graph_token_and_mean_text_state(
    pair: Pairs, name: str, description: str
) -> None:
    data = data_of(CORPORA[name](), pair("bert").backbone)
    model = {**GT2VEC, "distance_of": "token_and_text", "description": description}
    config = config_of(data.corpus, model, optim={"max_epochs": 1})
    result = fit(config, data)
    trained = trainee(config, data)
    trained.model.load_state_dict(dict(result.state))
    items = np.unique(data.cases("dev").items.data)
    texts, live = data.corpus.items.column("text").to_numpy()[items], data.live
    assert live is not None
    total = 0.0
    for item, text in zip(items, texts, strict=True):
        batch = trained.reader.batch(np.array([item]), CPU, described=False)
        token = trained.model.graph_tokens(batch)
        assert token is not None
        one = live.texts.take(np.array([text]))
        state = read_states(live.backbone, one, live.recipe, "mean")
        a, b = (v[0].detach().double().numpy() for v in (token, state))
        total += float(np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)))
    assert [a.distance for a in result.aligned] == [pytest.approx(total / len(items), rel=1e-5)]


def test_an_adapters_hidden_layer_may_have_a_width_of_its_own(pair: Pairs) -> None:
    """W2 ReLU(W1 g + b1) + b2 with W1 of `adapter_hidden` rows; those of the graph's vector if not given."""
    data = data_of(pairs(), pair("bert").backbone)
    for given, width in ((None, 8), (5, 5)):
        model = build_module(config_of(data.corpus, {**GT2VEC, "adapter_hidden": given}), data)
        shapes = {n: tuple(w.shape) for n, w in model.named_parameters() if "adapter" in n}
        d_token = data.facts(config_of(data.corpus, GT2VEC)).d_token
        assert shapes == {
            "adapter.first.weight": (width, 8),
            "adapter.first.bias": (width,),
            "adapter.second.weight": (d_token, width),
            "adapter.second.bias": (d_token,),
        }


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"description": "none", "graph_weight": 2.0}, "description is none, so that there is one"),
        ({"graph_weight": 0.0, "description_weight": 0.0}, "so that the task has no loss"),
        (
            {"graph_token": "none", "adapter_hidden": 4},
            "adapter_hidden is 4, but graph_token is no",
        ),
        (
            {"graph_token": "none", "readout_text": "nodes"},
            "readout_text is nodes, but graph_token",
        ),
        ({"graph_token": "none", "distance_of": "token_and_text"}, "distance_of is token_and_text"),
    ],
)
def test_what_means_nothing_is_refused(model: dict[str, object], says: str) -> None:
    described = {"description": "none"} if "graph_token" in model else {}
    with pytest.raises(ValueError, match=says):
        config_of(pairs({"train": 2}), {**GT2VEC, **described, **model})


UNTRAINED = {
    "a scorer of its own": (
        {"graph_weight": 0.0, "branch_scorers": "own"},
        "so that the scorer of graph and text, which is evaluated, would never be trained",
    ),
    "no alignment": (
        {"graph_weight": 0.0, "align": None},
        "graph_weight is 0 and there is no alignment, so that the graph token",
    ),
    "lambda 0": ({"graph_weight": 0.0, "lam": 0.0}, "graph_weight is 0 and lam is 0, so that"),
    "no alignment of descriptions": (
        {"description_weight": 0.0, "align": None},
        "description_weight is 0 and there is no alignment, so that descriptions would change",
    ),
    "lambda 0 of descriptions": (
        {"description_weight": 0.0, "lam": 0.0},
        "description_weight is 0 and lam is 0, so that descriptions would change nothing",
    ),
}


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_branch_that_nothing_trains_is_refused(name: str) -> None:
    model, says = UNTRAINED[name]
    with pytest.raises(ValueError, match=says):
        config_of(pairs(), {**GT2VEC, **model})
    with pytest.raises(ValueError, match=says):
        GraphTextMethod.model_validate({"model": {**GT2VEC, **model}})


def test_a_branch_of_weight_0_may_be_trained_by_what_pairs_it_with_the_other(pair: Pairs) -> None:
    """By the alignment, or by a retrieval across branches; every weight of the token gets a gradient."""
    data = unlike(data_of(retrieval(), pair("bert").backbone))
    across = {"kind": "retrieval", "branches": "across"}
    within = {"kind": "retrieval"}
    for loss, model in (
        (within, {"graph_weight": 0.0}),
        (within, {"graph_weight": 0.0, "branch_scorers": "own"}),
        (within, {"description_weight": 0.0}),
        (across, {"graph_weight": 0.0, "align": None}),
        (across, {"description_weight": 0.0, "lam": 0.0}),
    ):
        trained = trainee(config_of(data.corpus, {**GT2VEC, **model}, loss=loss), data)
        trained.loss(trained.batches(1)[0])[0].backward()
        for name, weights in trained.model.named_parameters():
            if name.startswith("adapter.second"):
                assert weights.grad is not None
                assert float(weights.grad.abs().max()) > 0, (loss, model, name)
    assert config_of(pairs(), {**GT2VEC, "graph_weight": 0.0}).model.n_scorers == 1


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "text_only"},
        {"kind": "text_only", "of": "description"},
        {**GT2VEC, "graph_token": "none", "description": "none"},
    ],
)
def test_controls_of_graphs_need_a_model_that_reads_some(model: dict[str, object]) -> None:
    for control in ({"graphs": "shuffled"}, {"node_features": "random"}):
        ((name, value),) = control.items()
        with pytest.raises(
            ValueError, match=f"{name} is {value}, but the model, of kind .* reads no"
        ):
            config_of(pairs(), model, **control)
        assert config_of(pairs(), {**GT2VEC, "description": "none"}, **control)
    with pytest.raises(ValueError, match="leave graphs and node_features out"):
        config_of(pairs(), model, graphs="shuffled", node_features="random")


def test_pairs_across_branches_need_two_branches() -> None:
    loss = {"kind": "retrieval", "branches": "across"}
    models: list[dict[str, object]] = [
        {**GT2VEC, "description": "none"},
        {"kind": "text_only", "of": "description"},
    ]
    for model in models:
        with pytest.raises(ValueError, match=r"across branches, but the model.*has one branch"):
            config_of(retrieval(), model, loss=loss)


def test_a_token_that_is_narrower_than_a_state_has_no_distance_to_it(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    config = config_of(data.corpus, {**GT2VEC, "distance_of": "token_and_text"})
    facts = replace(data.facts(config), d_token=7)
    with pytest.raises(InputError, match=r"a graph token of this backbone is 7 wide and a state"):
        config.model.build(facts, torch.Generator())
