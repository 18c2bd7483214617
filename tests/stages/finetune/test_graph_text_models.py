"""Graph-text models in training: what they depend on, what changes, and what they learn from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from permafrost.stages.finetune.backbone_pass import read_states
from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import build_module
from permafrost.stages.metrics.predictions import MEANS, read_answers
from tests.stages.finetune.graph_text_fits import (
    CORPORA,
    CPU,
    GT2VEC,
    Pairs,
    fit,
    gradients,
    trainee,
    tuned,
)
from tests.stages.finetune.tiny_graphs import (
    config_of,
    data_of,
    pairs,
    questions,
)

REACHED = ("encoder", "readout", "adapter")


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "pairs"),
        pytest.param("bert", "questions", marks=pytest.mark.deep),
        pytest.param("bert", "retrieval", marks=pytest.mark.deep),
    ],
)
def test_training_changes_the_model_and_no_weight_of_the_backbone(
    pair: Pairs, family: str, name: str, tmp_path: Path
) -> None:
    backbone = pair(family).backbone
    data = data_of(CORPORA[name](), backbone)
    before = {n: w.clone() for n, w in backbone.model.state_dict().items()}
    config = config_of(data.corpus, GT2VEC)
    start = build_module(config, data).state_dict()
    result = fit(config, data)
    after = backbone.model.state_dict()
    assert all(torch.equal(after[n], w) for n, w in before.items())
    assert all(p.grad is None for p in backbone.model.parameters())
    for part in ("encoder", "readout", "adapter", *(() if name == "retrieval" else ("scorers",))):
        moved = [
            k for k in start if k.startswith(part) and not torch.equal(start[k], result.state[k])
        ]
        assert moved, f"{part} is trained"
    assert len(result.history) == 2
    again = fit(config, data)
    assert all(torch.equal(again.state[k], result.state[k]) for k in result.state)
    scores = score_finetuned(FinetuneScoreConfig(), tuned(result), data)
    assert scores.metrics["dev"] == result.best.dev_metric
    assert scores.metrics["metric"] == ("ndcg_at_10" if name == "retrieval" else "accuracy")
    if name == "retrieval":
        scores.save(tmp_path)
        answers = read_answers(tmp_path)
        assert answers is not None
        assert answers.predictions.mean() == pytest.approx(scores.metrics["test"], abs=1e-12)
        assert scores.metrics["metric"] in MEANS


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_gradients_reach_every_matrix_of_graph_encoder_readout_and_adapter(
    pair: Pairs, family: str
) -> None:
    # Decay moves weights also where no gradient comes.
    data = data_of(pairs(), pair(family).backbone)
    found = gradients(trainee(config_of(data.corpus, GT2VEC), data))
    trained = {k: g.abs().max() for k, g in found.items() if k.startswith(REACHED) and g.ndim > 1}
    assert {name.split(".")[0] for name in trained} == set(REACHED)
    assert min(trained.values()) > 0, trained


def test_without_a_graph_token_it_is_the_text_only_probe(pair: Pairs) -> None:
    data = data_of(pairs(), pair("llama").backbone)
    bare = {**GT2VEC, "graph_token": "none", "description": "none"}
    one = fit(config_of(data.corpus, bare), data)
    other = fit(config_of(data.corpus, {"kind": "text_only"}), replace(data, live=None))
    assert one.state.keys() == other.state.keys()
    assert all(torch.equal(one.state[k], other.state[k]) for k in one.state), "bitwise"
    assert [r.train_loss for r in one.history] == [r.train_loss for r in other.history]
    with pytest.raises(ValueError, match=r"graph_token is none.*set description: none"):
        config_of(data.corpus, {**GT2VEC, "graph_token": "none"})


def test_a_graph_of_the_query_node_alone_still_inserts_its_token(pair: Pairs) -> None:
    data = data_of(pairs(), pair("llama").backbone)
    trained = trainee(config_of(data.corpus, GT2VEC), data)
    trained.model.eval()
    items = np.arange(3)
    assert data.features.texts is not None
    text = torch.from_numpy(
        data.features.texts.take(data.corpus.items.column("text").to_numpy()[items])
    )
    trained.reader.graphs[:] = -1
    z = trained.embeddings(items).z
    assert not torch.isclose(z, text, atol=1e-3).all(dim=1).any()
    with torch.no_grad():
        for p in trained.model.adapter.parameters():  # type: ignore[union-attr]
            p.zero_()
    zero = trained.embeddings(items).z
    assert not torch.equal(zero, z)
    assert data.live is not None
    live, texts = data.live, data.corpus.items.column("text").to_numpy()[items]
    width = trained.data.facts(trained.config).d_token
    expected = read_states(
        live.backbone, live.texts.take(texts), live.recipe, "last", torch.zeros(3, width)
    )
    # In passes of texts of like lengths, and in one: processors differ in whether that rounds alike.
    torch.testing.assert_close(zero, expected, msg="adapter zero: a zero token before the text")


def test_scores_do_not_depend_on_the_second_branch(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    result = fit(config_of(data.corpus, GT2VEC), data)
    assert len(result.aligned) == 2
    other = replace(data, features=replace(data.features, descriptions=None))
    found = [score_finetuned(FinetuneScoreConfig(), tuned(result), d) for d in (data, other)]
    assert found[0].metrics == found[1].metrics
    assert found[0].predictions.equals(found[1].predictions)


@pytest.mark.parametrize("name", CORPORA)
def test_scores_without_the_cases_whose_texts_train_has(pair: Pairs, name: str) -> None:
    """The first case of test is the first of train, and of a search its query."""
    corpus = CORPORA[name]()
    first = {s: corpus.cases.column("split").to_pylist().index(s) for s in ("train", "test")}
    rows = corpus.cases.to_pylist()
    rows[first["test"]] |= {"items": rows[first["train"]]["items"]}
    judged = [
        j | {"query": row["items"][0], "document": row["items"][1]}
        for j, row in zip(corpus.judgements.to_pylist(), rows, strict=False)
    ]
    corpus = replace(
        corpus,
        cases=pa.Table.from_pylist(rows, corpus.cases.schema),
        judgements=pa.Table.from_pylist(judged, corpus.judgements.schema),
    )
    data = data_of(corpus, pair("bert").backbone)
    result = fit(config_of(corpus, {"kind": "text_only"}, optim={"max_epochs": 1}), data)
    scored = score_finetuned(FinetuneScoreConfig(), tuned(result), replace(data, live=None))
    tested = [row for row in scored.predictions.to_pylist() if row["split"] == "test"]
    others = [
        row["score"] if name == "retrieval" else row["prediction"] == row["label"]
        for row in tested[1:]
    ]
    metrics = scored.metrics
    assert metrics["overlap"] == 1 / len(tested)
    assert metrics["n_clean_test"] == len(others)
    assert metrics["clean_test"] == pytest.approx(np.mean(others), abs=1e-12)
    assert (metrics["test_in_dev"], metrics["dev_in_train"]) == (0, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CORPORA)
def test_the_alignment_curve_is_the_distance_of_the_branches_on_dev(pair: Pairs, name: str) -> None:
    data = data_of(CORPORA[name](), pair("bert").backbone)
    config = config_of(data.corpus, GT2VEC, optim={"max_epochs": 1})
    result = fit(config, data)
    trained = trainee(config, data)
    trained.model.load_state_dict(dict(result.state))
    trained.model.eval()
    cases = data.cases("dev")
    total = 0.0
    items = np.unique(cases.items.data)
    for item in items:
        found = trained.embeddings(np.array([item]), described=True)
        a, b = (z[0].double().numpy() for z in found.branches)
        total += float(np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)))
    assert [(a.epoch, a.distance) for a in result.aligned] == [
        (1, pytest.approx(total / len(items), rel=1e-5))
    ]


@pytest.mark.parametrize("name", CORPORA)
def test_the_loss_is_that_of_both_branches_and_lambda_times_the_alignment(
    pair: Pairs, name: str
) -> None:
    data = data_of(CORPORA[name](), pair("bert").backbone)

    def loss(**model: object) -> float:
        trained = trainee(config_of(data.corpus, {**GT2VEC, **model}), data)
        trained.model.eval()
        return float(trained.loss(trained.batches(1)[0])[0].detach())

    first = loss(description="none")
    both = loss(align=None)
    aligned = [loss(lam=lam) for lam in (0.0, 0.1, 0.2)]
    assert both > first
    assert aligned[0] == both
    assert aligned[2] - aligned[1] == pytest.approx(aligned[1] - aligned[0], rel=1e-3)
    n = 4 if name != "retrieval" else 8
    least = n * np.log(1 + (n - 1) * np.exp(-n / (n - 1)))
    assert (aligned[1] - aligned[0]) / 0.1 >= least, (
        "InfoNCE of n items without temperature, summed"
    )


def test_choices_in_another_order_get_the_same_scores(pair: Pairs) -> None:
    data = data_of(questions(), pair("llama").backbone)
    trained = trainee(config_of(data.corpus, {**GT2VEC, "description": "none"}), data)
    trained.model.eval()
    items = data.cases("train").items[0]
    back = items[::-1].copy()
    scores = trained.scores(trained.embeddings(items).z, items)
    turned = trained.scores(trained.embeddings(back).z, back)
    assert turned[::-1] == pytest.approx(scores, abs=1e-5)


def test_controls_change_what_they_say(pair: Pairs) -> None:
    corpus = pairs()
    data = data_of(corpus, pair("bert").backbone)
    alone = {**GT2VEC, "description": "none"}
    base = trainee(config_of(corpus, alone), data)
    dealt = trainee(config_of(corpus, alone, graphs="shuffled"), data)
    drawn = trainee(config_of(corpus, alone, node_features="random"), data)
    labels = trainee(config_of(corpus, alone, labels="shuffled"), data)
    items = np.arange(4)
    batches = [t.reader.batch(items, CPU).graphs for t in (base, dealt, drawn)]
    assert all(b is not None for b in batches)
    true, other, noise = batches
    assert not torch.equal(true.features, other.features)  # type: ignore[union-attr]
    assert torch.equal(true.target, noise.target)  # type: ignore[union-attr]
    assert not torch.equal(true.features, noise.features)  # type: ignore[union-attr]
    assert sorted(base.train.labels) == sorted(labels.train.labels)
    assert not np.array_equal(base.train.labels, labels.train.labels)
    with pytest.raises(ValueError, match="graphs is shuffled, but the model reads descriptions"):
        config_of(corpus, GT2VEC, graphs="shuffled")


def test_graph_only_sees_no_text(pair: Pairs) -> None:
    corpus = pairs()
    data = data_of(corpus, pair("bert").backbone)
    trained = trainee(config_of(corpus, {"kind": "gnn_only"}), data)
    trained.model.eval()
    items = np.arange(6)
    z = trained.embeddings(items).z
    other = replace(data, features=replace(data.features, texts=data.features.descriptions))
    found = trainee(config_of(corpus, {"kind": "gnn_only"}), other)
    found.model.eval()
    assert torch.equal(found.embeddings(items).z, z)
    beside = trainee(config_of(corpus, {"kind": "qa_gnn"}), data)
    beside.model.eval()
    text = data.features.texts
    assert text is not None
    mine = beside.embeddings(items).z
    rows = text.take(corpus.items.column("text").to_numpy()[items])
    assert torch.equal(mine[:, : rows.shape[1]], torch.from_numpy(rows))


@pytest.mark.parametrize("kind", ["gnn_only", "qa_gnn"])
def test_networks_beside_the_text_are_trained_without_the_backbone(pair: Pairs, kind: str) -> None:
    data = replace(data_of(questions(), pair("bert").backbone), live=None)
    result = fit(config_of(data.corpus, {"kind": kind}), data)
    scored = score_finetuned(FinetuneScoreConfig(n_graphs=2), tuned(result), data)
    assert scored.metrics["dev"] == result.best.dev_metric
    assert scored.graphs is not None
    nodes, edges = scored.graphs.nodes.to_pylist(), scored.graphs.edges.to_pylist()
    assert {row["case"] for row in nodes} == {0, 5}
    for item in {row["item"] for row in nodes}:
        own = [row for row in nodes if row["item"] == item]
        assert own[0]["label"] is None
        for node in own:
            leaving = [
                e["attention"] for e in edges if (e["item"], e["source"]) == (item, node["node"])
            ]
            assert sum(leaving) + node["attention"] == pytest.approx(1, abs=1e-5)
    for case in (0, 5):
        assert len({r["item"] for r in nodes if r["case"] == case and r["is_right"]}) == 1
        assert len({r["item"] for r in nodes if r["case"] == case and r["is_answer"]}) == 1
