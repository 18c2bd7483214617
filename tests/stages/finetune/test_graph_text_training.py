"""How graph-text models are trained: precision, dev, decay, and going on after a stop."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn import functional

from permafrost.stages.finetune.cases import relevant_grades, require_cases
from permafrost.stages.finetune.config import Precision
from permafrost.stages.finetune.graph_batches import RandomRows
from permafrost.stages.finetune.identity import identity_of
from permafrost.stages.finetune.module import Embedded
from permafrost.stages.finetune.train import finetune
from permafrost.stages.finetune.trainee import GraphTextTrainee, as_batch
from permafrost.stages.graphs.assembling import Case, Item, Judgement, Searched, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.finetune.graph_text_fits import (
    GT2VEC,
    WITHOUT_DROPOUT,
    Pairs,
    fit,
    gradients,
    same_direction,
    trainee,
)
from tests.stages.finetune.stopping import Stopped, Stopping
from tests.stages.finetune.tiny_graphs import (
    RELATIONS,
    config_of,
    data_of,
    pairs,
    retrieval,
)


def test_training_makes_the_loss_smaller(pair: Pairs) -> None:
    corpus = pairs({"train": 16, "dev": 4, "test": 4})
    data = data_of(corpus, pair("llama").backbone)
    optim = {"lr": 0.01, "batch_size": 16, "max_epochs": 12}
    full = fit(config_of(corpus, {**GT2VEC, "description": "none"}, optim=optim), data)
    losses = [r.train_loss for r in full.history]
    assert losses[-1] < 0.9 * losses[0]


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


@pytest.mark.parametrize("repeated", ["left_out", "negative"])
def test_equal_texts_under_two_ids_are_one_query_and_one_document(
    pair: Pairs, repeated: str
) -> None:
    """Whatever is relevant to one is no negative of the other."""

    def loss(n_ids: int) -> float:
        graphs = GraphCollector(len(RELATIONS))

        def item(text: str, n: int) -> list[Item]:
            made = [Item(text, graphs.add(["snow"], [], queries=[0])) for _ in range(n)]
            return made * (2 // n)

        queries, documents = item("never", n_ids), item("the snow", 2)
        documents[1] = Item("was under", documents[1].graph)
        asked = list(zip(queries, documents, strict=True))
        cases = [Case(s, pair, 1) for s in ("train", "dev", "test") for pair in asked]
        judged = [Judgement(c.split, c.items[0], c.items[1], 1) for c in cases]
        searched = Searched(documents, judged)
        corpus = assemble("unlabelled", cases, graphs, RELATIONS, searched=searched)
        assert len(corpus.items) == 2 + n_ids
        data = data_of(corpus, pair("bert").backbone)
        config = config_of(
            corpus,
            GT2VEC | WITHOUT_DROPOUT | {"description": "none"},
            loss={"kind": "retrieval", "repeated": repeated},
        )
        trained = trainee(config, data)
        trained.model.eval()
        return float(trained.loss(trained.batches(1)[0])[0].detach())

    assert loss(2) == pytest.approx(loss(1), abs=1e-4)


def test_what_a_pair_of_another_batch_says_is_relevant_is_no_negative(pair: Pairs) -> None:
    """Of (a, x), (b, y) and (a, y), the third of which is in another batch."""
    graphs = GraphCollector(len(RELATIONS))
    a, b, x, y = (
        Item(text, graphs.add(["snow"], [], queries=[0]))
        for text in ("never", "the snow", "was under", "ice")
    )
    asked = [(a, x), (b, y), (a, y)]
    cases = [Case(s, pair, 1) for s in ("train", "dev", "test") for pair in asked]
    judged = [Judgement(c.split, c.items[0], c.items[1], 1) for c in cases]
    corpus = assemble("unlabelled", cases, graphs, RELATIONS, searched=Searched([x, y], judged))
    data = data_of(corpus, pair("bert").backbone)
    model = GT2VEC | WITHOUT_DROPOUT | {"description": "none"}
    trained = trainee(config_of(corpus, model), data)
    trained.model.eval()
    batch = as_batch(trained.train.take(np.array([0, 1])))
    z = functional.normalize(trained.embeddings(batch.items).z.double(), dim=1)
    queries, documents = z[batch.cases.items.data.reshape(-1, 2)].unbind(1)
    logits = queries @ documents.T / 0.05
    # The query a has no negative here, and adds nothing.
    wanted = torch.logsumexp(logits[1], 0) - logits[1, 1]
    assert float(trained.loss(batch)[0].detach()) == pytest.approx(float(wanted), abs=1e-4)
    assert float(torch.logsumexp(logits[0], 0) - logits[0, 0]) > 1e-3


def test_the_distance_on_dev_is_of_what_is_relevant(pair: Pairs) -> None:
    """A case of dev whose document is not relevant changes neither it nor the score."""
    corpus = retrieval()
    rows = corpus.cases.to_pylist()
    of_dev = [row for row in rows if row["split"] == "dev"]
    apart = of_dev[0] | {"items": [of_dev[0]["items"][0], of_dev[1]["items"][1]], "label": 0}
    cases = pa.Table.from_pylist([*rows, apart], corpus.cases.schema)
    data = data_of(corpus, pair("bert").backbone)
    config = config_of(corpus, GT2VEC | WITHOUT_DROPOUT)
    found = [
        fit(config, replace(data, corpus=replace(corpus, cases=some)))
        for some in (corpus.cases, cases)
    ]
    assert found[0].aligned == found[1].aligned
    assert found[0].history == found[1].history


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


@pytest.mark.few(1)
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
    steps.clear()
    over = finetune(config, data, Seen(), checkpoint=file)
    assert steps == [6, 0], "killed before the result was saved"
    for found in (again, over):
        assert all(torch.equal(found.state[k], whole.state[k]) for k in whole.state), "bitwise"
        assert (found.history, found.log, found.aligned) == (
            whole.history,
            whole.log,
            whole.aligned,
        )


def test_defaults_train_until_dev_stops_improving(pair: Pairs) -> None:
    data = data_of(pairs(), pair("bert").backbone)
    defaults: dict[str, object] = {"max_epochs": None, "max_steps": 30, "batch_size": 4}
    given = trainee(config_of(data.corpus, GT2VEC), data).plan
    plan = trainee(config_of(data.corpus, GT2VEC, optim=defaults), data).plan
    assert (given.n_epochs, given.n_steps) == (2, 3)
    assert (plan.n_epochs, plan.patience) == (10, 5), "30 steps of 3 an epoch; at least five epochs"


def test_a_checkpoint_is_of_one_kind_of_device_and_of_everything_that_is_read(pair: Pairs) -> None:
    """Dropout draws otherwise on another kind of device; resumed there, a fit was neither's."""
    data = data_of(retrieval(), pair("bert").backbone)
    config, corpus = config_of(data.corpus, GT2VEC), data.corpus
    own = identity_of(config, data, "cpu")
    assert identity_of(config, data, "cpu:0") == own
    assert identity_of(config, data, "cuda") != own
    turned = pa.array(corpus.items.column("query").to_pylist()[::-1])
    at, features = corpus.items.schema.get_field_index("query"), data.features
    assert features.texts is not None
    others = (
        replace(corpus, items=corpus.items.set_column(at, corpus.items.schema.field(at), turned)),
        replace(corpus, judgements=corpus.judgements.slice(1)),
        replace(corpus, documents=corpus.documents[1:]),
        replace(corpus, relation_words=("is", "is in")),
    )
    found = [identity_of(config, replace(data, corpus=other), "cpu") for other in others]
    for name in ("texts", "labels", "descriptions"):
        fewer = replace(features, **{name: RandomRows(features.texts.width, 8)})
        found.append(identity_of(config, replace(data, features=fewer), "cpu"))
    assert len({own, *found}) == 1 + len(found)


@pytest.mark.parametrize("at_a_time", [None, 2])
def test_the_loss_that_is_noted_is_of_a_case(pair: Pairs, at_a_time: int | None) -> None:
    """Batches of 5, 5 and 2 cases: a mean of sums weighed by sizes would be of none of them."""
    data = data_of(pairs(), pair("bert").backbone)
    model = {**GT2VEC, **WITHOUT_DROPOUT, "description": "none"}
    # So slow that the loss of every batch is that of the first weights.
    optim = {"batch_size": 5, "lr": 1e-12, "at_a_time": at_a_time, "max_epochs": 1}
    loss = {"kind": "binary"}
    config = config_of(data.corpus, model, optim=optim, loss=loss)
    trained = trainee(config, data)
    trained.model.train()
    with torch.no_grad():
        sums = [float(trained.loss(batch)[0]) for batch in trained.batches(1)]
    (epoch,) = fit(config, data).history
    assert epoch.train_loss == pytest.approx(sum(sums) / 12, rel=1e-5)
    means = config_of(data.corpus, model, optim=optim, loss={**loss, "reduction": "mean"})
    assert fit(means, data).history[0].train_loss == pytest.approx(sum(sums) / 12, rel=1e-5)
