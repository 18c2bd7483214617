"""Graph-text models in training: what they depend on, what changes, and what they learn from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.finetune.backbone_pass import read_states
from permafrost.stages.finetune.cases import relevant_grades, require_cases
from permafrost.stages.finetune.config import FinetuneConfig, FinetuneScoreConfig, Precision
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.module import Embedded
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import build_module, finetune
from permafrost.stages.finetune.trained import Finetuned, FinetuneResult
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.tiny_graphs import (
    ENCODER,
    config_of,
    data_of,
    pairs,
    questions,
    retrieval,
)

Pairs = Callable[[str], Pair]
CPU = torch.device("cpu")
GT2VEC: dict[str, object] = {"kind": "gt2vec"}
WITHOUT_DROPOUT = {
    "encoder": {**ENCODER, "n_layers": 1, "dropout": 0.0},
    "readout": {"kind": "mean", "dropout": 0.0},
}
CORPORA = {"pairs": pairs, "questions": questions, "retrieval": retrieval}


def fit(config: FinetuneConfig, data: FinetuneData) -> FinetuneResult:
    return finetune(config, data, SilentProgress())


def tuned(result: FinetuneResult) -> Finetuned:
    best = result.best
    return Finetuned(
        result.config, result.facts, best.epoch, best.dev_metric, result.state, result.relations
    )


def trainee(config: FinetuneConfig, data: FinetuneData) -> GraphTextTrainee:
    return GraphTextTrainee(config, data, build_module(config, data), CPU)


def gradients(trained: GraphTextTrainee, n: int = 1) -> dict[str, Tensor]:
    trained.model.train()
    trained.optimizer.zero_grad()
    trained.gradients(trained.batches(1)[n - 1], lambda _: None)
    named = trained.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def same_direction(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Equal to rounding, in float32 through a backbone with wide weights (measured: 2e-5)."""
    assert found.keys() == expected.keys()
    a, b = (torch.cat([g[name].flatten() for name in expected]) for g in (found, expected))
    return float((a - b).norm()) <= 2e-4 * float(b.norm())


@pytest.mark.parametrize(
    ("family", "name"), [("llama", "pairs"), ("bert", "questions"), ("bert", "retrieval")]
)
def test_training_changes_the_model_and_no_weight_of_the_backbone(
    pair: Pairs, family: str, name: str
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
    assert torch.equal(zero, expected), "adapter zero: a zero token before the text"


def test_scores_do_not_depend_on_the_second_branch(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    result = fit(config_of(data.corpus, GT2VEC), data)
    assert len(result.aligned) == 2
    other = replace(data, features=replace(data.features, descriptions=None))
    found = [score_finetuned(FinetuneScoreConfig(), tuned(result), d) for d in (data, other)]
    assert found[0].metrics == found[1].metrics
    assert found[0].predictions.equals(found[1].predictions)


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


@pytest.mark.parametrize(("name", "at_a_time"), [("pairs", 3), ("questions", 1), ("retrieval", 3)])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    pair: Pairs, name: str, at_a_time: int
) -> None:
    data = data_of(CORPORA[name](), pair("bert").backbone)
    model = {**GT2VEC, **WITHOUT_DROPOUT}
    whole = gradients(trainee(config_of(data.corpus, model), data))
    parts = gradients(trainee(config_of(data.corpus, model, optim={"at_a_time": at_a_time}), data))
    assert same_direction(parts, whole)


def test_parts_draw_the_same_numbers_in_both_passes(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    config = config_of(data.corpus, GT2VEC, optim={"at_a_time": 2})
    trained = trainee(config, data)
    seen: list[Tensor] = []
    handle = trained.model.adapter.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, output: seen.append(output.detach().clone())
    )
    gradients(trained)
    handle.remove()
    assert len(seen) == 4, "two parts, twice"
    assert all(torch.equal(seen[i], seen[i + 2]) for i in range(2))
    assert not torch.equal(seen[0], seen[1])


def limited(trained: GraphTextTrainee, limit: int, error: type[RuntimeError]) -> None:
    """From now on more than `limit` items at a time do not fit."""
    whole = trained._embed

    def embed(items: np.ndarray, precision: Precision) -> object:
        found = whole(items, precision)
        if len(items) > limit:
            raise error("CUDA error: out of memory")
        return found

    trained._embed = embed  # type: ignore[method-assign,assignment]


def test_a_batch_that_does_not_fit_is_split_and_the_next_one_too(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    model = {**GT2VEC, **WITHOUT_DROPOUT}
    whole = gradients(trainee(config_of(data.corpus, model), data))
    small = trainee(config_of(data.corpus, model), data)
    limited(small, 1, torch.OutOfMemoryError)
    parts = gradients(small)
    assert small.fitting.at_a_time == 1
    assert same_direction(parts, whole)
    nothing = trainee(config_of(data.corpus, model), data)
    limited(nothing, 0, torch.OutOfMemoryError)
    with pytest.raises(
        Exception, match="one text with its graph alone does not fit in the memory of cpu"
    ):
        gradients(nothing)


def test_what_is_no_lack_of_memory_is_not_tried_again(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    trained = trainee(config_of(data.corpus, GT2VEC), data)

    def broken(items: np.ndarray, precision: Precision) -> object:
        raise RuntimeError("shapes do not match")

    trained._embed = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="shapes do not match"):
        gradients(trained)


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


def test_training_makes_the_loss_smaller(pair: Pairs) -> None:
    corpus = pairs({"train": 16, "dev": 4, "test": 4})
    data = data_of(corpus, pair("llama").backbone)
    optim = {"lr": 0.01, "batch_size": 16, "max_epochs": 12}
    full = fit(config_of(corpus, {**GT2VEC, "description": "none"}, optim=optim), data)
    losses = [r.train_loss for r in full.history]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_recomputed_activations_give_the_same_gradients(pair: Pairs, family: str) -> None:
    data = data_of(pairs(), pair(family).backbone)
    kept = gradients(trainee(config_of(data.corpus, GT2VEC), data))
    forwards = [vars(b).get("forward") for b in blocks(pair(family))]
    n_calls: list[int] = []
    handle = pair(family).backbone.family.attention_module(pair(family).backbone.model, 1)
    count = handle.register_forward_hook(lambda *_: n_calls.append(1))
    again = gradients(
        trainee(config_of(data.corpus, GT2VEC, optim={"activations": "recomputed"}), data)
    )
    count.remove()
    assert len(n_calls) == 2, "once, and once more on the way back"
    assert same_direction(again, kept)
    assert [vars(b).get("forward") for b in blocks(pair(family))] == forwards, "put back"


def blocks(both: Pair) -> list[torch.nn.Module]:
    return list(both.backbone.family.block_list(both.backbone.model))


def test_low_precision_is_for_training_only(pair: Pairs) -> None:
    data = data_of(pairs(), pair("llama").backbone)
    model = {**GT2VEC, **WITHOUT_DROPOUT}
    full, low = (
        trainee(config_of(data.corpus, model, optim={"precision": p}), data)
        for p in ("float32", "bfloat16")
    )
    one, other = gradients(full), gradients(low)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in other.values())
    assert not same_direction(other, one)
    full.model.eval(), low.model.eval()
    items = np.arange(3)
    assert torch.equal(full.embeddings(items).z, low.embeddings(items).z)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_dev_is_evaluated_in_the_precision_of_training(precision: str, pair: Pairs) -> None:
    data = data_of(pairs(), pair("llama").backbone)
    trained = trainee(config_of(data.corpus, GT2VEC, optim={"precision": precision}), data)
    trained.model.eval()
    are_low: set[bool] = set()
    noted = trained.model.register_forward_pre_hook(
        lambda *_: are_low.add(torch.is_autocast_enabled("cpu"))
    )
    trained.dev()
    noted.remove()
    assert are_low == {precision == "bfloat16"}


def embedded_on_dev(trained: GraphTextTrainee, patch: pytest.MonkeyPatch) -> set[int]:
    """The items whose embeddings an evaluation on dev asks for."""
    embed, asked = trained.embeddings, set[int]()

    def noted(items: np.ndarray, *args: Precision) -> Embedded:
        asked.update(items.tolist())
        return embed(items, *args)

    patch.setattr(trained, "embeddings", noted)
    trained.model.eval()
    trained.dev()
    return asked


def test_dev_queries_may_search_some_documents_while_training(
    pair: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = retrieval()
    data = data_of(corpus, pair("bert").backbone)
    model = {**GT2VEC, "description": "none"}
    whole, some = (
        embedded_on_dev(
            trainee(config_of(corpus, model, optim={"dev_documents": n}), data), monkeypatch
        )
        for n in (None, 1)
    )
    documents = {*corpus.documents}
    assert whole & documents == documents
    judged = {d for own in relevant_grades(corpus, "dev").values() for d in own}
    assert some & documents == judged
    classes = pairs()
    with pytest.raises(InputError, match=r"dev_documents is 5, but the corpus is of kind classif"):
        require_cases(config_of(classes, GT2VEC, optim={"dev_documents": 5}), classes)


def test_decay_may_spare_vectors_and_is_decoupled(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    optim = {"decayed": "matrices", "lr": 0.1, "weight_decay": 0.5}
    trained = trainee(config_of(data.corpus, GT2VEC, optim=optim), data)
    before = {n: p.detach().clone() for n, p in trained.model.named_parameters()}
    for p in trained.model.parameters():
        p.grad = torch.zeros_like(p)
    trained.optimizer.step()
    assert isinstance(trained.optimizer, torch.optim.RAdam)
    for name, p in trained.model.named_parameters():
        shrunk = 1 - 0.1 * 0.5 if p.ndim > 1 else 1.0
        assert torch.allclose(p, before[name] * shrunk), name


class Stopped(Exception):
    """Raised by the progress after some steps."""


class Stopping(SilentProgress):
    """Ends a training in the middle."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, amount: int | float, note: str = "") -> None:
        # Skipped steps are announced at once, with no note.
        self.left -= bool(note)
        if self.left < 0:
            raise Stopped


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_stopped_training_goes_on_with_the_result_it_would_have_had(
    pair: Pairs, tmp_path: Path, after: int
) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    config = config_of(data.corpus, GT2VEC)
    whole, file = fit(config, data), tmp_path / "fit.pt"
    with pytest.raises(Stopped):
        finetune(config, data, Stopping(after), checkpoint=file)
    assert file.exists()
    steps: list[int] = []

    class Seen(SilentProgress):
        def advance(self, amount: int | float, note: str = "") -> None:
            steps.append(int(amount))

    again = finetune(config, data, Seen(), checkpoint=file)
    assert steps[0] == after, "of 3 steps an epoch"
    assert sum(steps) == 6
    assert not file.exists()
    assert all(torch.equal(again.state[k], whole.state[k]) for k in whole.state), "bitwise"
    assert (again.history, again.log, again.aligned) == (whole.history, whole.log, whole.aligned)


def test_defaults_train_until_dev_stops_improving(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    defaults: dict[str, object] = {"max_epochs": None, "max_steps": 30, "batch_size": 4}
    given = trainee(config_of(data.corpus, GT2VEC), data).plan
    plan = trainee(config_of(data.corpus, GT2VEC, optim=defaults), data).plan
    assert (given.n_epochs, given.n_steps) == (2, 3)
    assert (plan.n_epochs, plan.patience) == (10, 5), "30 steps of 3 an epoch; at least five epochs"
