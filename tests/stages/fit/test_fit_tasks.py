"""Heads on pairs of texts."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from permafrost.stages.fit import (
    Contrastive,
    CosineMse,
    FitConfig,
    FitData,
    OptimConfig,
    TaskFacts,
    fit,
    load_head,
    source_of,
)
from permafrost.stages.fit.candidates import candidates
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.heads import AdaPoolHead, GlotHead, MaxHead, MeanHead, MlpHead, ScorerHead
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader, WindowedReader, open_reader
from tests.diagonal import diagonal
from tests.stages.synthetic_fit import PAIR_TASKS, make_pairs, same_fit, with_column
from tests.storage.small_store import filled_store

CPU = torch.device("cpu")
TASKS = list(PAIR_TASKS)


def _config(task, head=None, **settings):
    settings.setdefault("optim", OptimConfig(lr=1e-2, batch_size=10, max_epochs=3))
    head = ScorerHead(hidden=8) if head is None else head
    return FitConfig(head=head, **({"seed": 3} | PAIR_TASKS[task] | settings))


def _fit(config, data):
    return fit(config, data, SilentProgress())


# Learning


@pytest.mark.parametrize(
    ("task", "chance"),
    [
        ("pair_classification", 0.6),  # the commonest of three classes is half of the pairs
        # Cosines of vectors that nothing was learnt for go with the grades already.
        pytest.param("similarity", 0.4, marks=pytest.mark.deep),
        # The mean of 1 / rank over 60 ranks is 0.08.
        pytest.param("unlabelled", 0.2, marks=pytest.mark.deep),
    ],
)
def test_a_head_learns_every_task_and_nothing_from_shuffled_answers(task, chance):
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=15)
    data = make_pairs(task, n_train=300, n_dev=60)
    result = _fit(_config(task, optim=optim), data)
    shuffled = _fit(_config(task, optim=optim, labels="shuffled"), data)
    assert shuffled.best.dev_metric <= chance
    assert result.best.dev_metric >= shuffled.best.dev_metric + 0.2
    assert result.history[-1].train_loss < result.history[0].train_loss


@pytest.mark.few(1)
@diagonal(
    {
        "task": TASKS,
        "head": [GlotHead(hidden=6, tau=0.4), MlpHead(hidden=6), AdaPoolHead(heads=2)],
    }
)
def test_other_heads_train_on_pairs_deterministically_and_load_again(task, head, tmp_path):
    config, data = _config(task, head), make_pairs(task)
    result = _fit(config, data)
    same_fit(result, _fit(config, data))
    assert _fit(_config(task, head, seed=4), data).history != result.history
    result.save(tmp_path)
    loaded = load_head(tmp_path)
    assert loaded.facts == result.facts
    rows = data.readers["hidden/6"].features
    batch = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    assert torch.equal(loaded.embed(*batch), result.head().embed(*batch))
    assert loaded.state_dict().keys() == result.head().state_dict().keys()


@pytest.mark.parametrize("head", [MeanHead(), MaxHead()])
@pytest.mark.parametrize("task", ["pair_classification", "similarity"])
def test_pooling_pairs_once_equals_training_through_the_head(task, head):
    config, data = _config(task, head), make_pairs(task)
    quick = _fit(config, data)
    source = source_of(data.split("train"), data.reader("hidden/6"))
    trainee = HeadTrainee(config, quick.facts, source, None, CPU)
    for record in quick.history:
        steps = list(Trainer(trainee, trainee.plan).steps(record.epoch))
        loss = sum(step.loss * step.n_examples for step in steps) / 64
        # Vectors of a text differ by rounding with the batch it is pooled in.
        assert loss == pytest.approx(record.train_loss, rel=1e-6)


def test_a_fit_on_pairs_never_reads_test():
    for task in TASKS:
        data = make_pairs(task)
        rows = data.readers["hidden/6"].features
        broken = rows.data.copy()
        for text in np.concatenate(data.split("test").sides):
            broken[rows.offsets[text] : rows.offsets[text + 1]] = np.nan
        reader = InMemoryReader("hidden/6", Ragged(broken, rows.offsets))
        blind = replace(data, readers={"hidden/6": reader})
        same_fit(_fit(_config(task), data), _fit(_config(task), blind))


# Batches


def test_a_batch_of_pairs_holds_first_texts_then_second_texts_and_every_pair_once():
    data = make_pairs("similarity", n_train=23)
    # One text is first in two pairs and second in a third.
    first = data.examples["text"].to_numpy().copy()
    first[:2] = data.examples["text_pair"][2].as_py()
    data = with_column(data, text=pa.array(first))
    train = data.split("train")
    source = source_of(train, data.reader("hidden/6"))
    rows = data.readers["hidden/6"].features
    for epoch in (1, 2):
        seen = []
        for picked, batch in source.shuffled(5, 7, epoch):
            texts = [*train.sides[0][picked], *train.sides[1][picked]]
            assert len(batch) == len(texts)
            for i, text in enumerate(texts):
                assert np.array_equal(batch[i], rows[int(text)])
            seen.append(picked.tolist())
        assert sorted(i for batch in seen for i in batch) == list(range(23))
        assert [len(batch) for batch in seen] == [5, 5, 5, 5, 3]
        again = [picked.tolist() for picked, _ in source.shuffled(5, 7, epoch)]
        assert seen == again
    assert seen != [picked.tolist() for picked, _ in source.shuffled(5, 7, 1)]


def _from_store(folder, task, budget):
    """Pairs of the texts of a store of several segments."""
    small = filled_store(folder, n_texts=40, whole_span=True)
    reader = open_reader(small.store, "hidden/1", small.digests, budget_bytes=budget)
    rng = np.random.default_rng(0)
    labels = {"pair_classification": rng.permutation(60) % 3, "similarity": rng.uniform(0, 5, 60)}
    examples = pa.table(
        {
            "split": ["train"] * 40 + ["dev"] * 20,
            "text": rng.integers(0, 40, 60),
            "text_pair": rng.integers(0, 40, 60),
            "label": pa.array(labels[task].astype(np.float64))
            if task in labels
            else pa.nulls(60, pa.float64()),
        }
    )
    names = ("a", "b", "c") if task == "pair_classification" else ()
    return FitData({"hidden/1": reader}, examples, names, tuple(small.digests), task)


@pytest.mark.few(1)
@pytest.mark.parametrize("task", TASKS)
def test_windows_of_a_store_train_pairs_as_memory_does(task, tmp_path):
    config = _config(task, layer="hidden/1")
    windowed = _from_store(tmp_path / "small", task, 2000)
    whole = _from_store(tmp_path / "large", task, 1 << 30)
    assert isinstance(windowed.readers["hidden/1"], WindowedReader)
    assert isinstance(whole.readers["hidden/1"], InMemoryReader)
    same_fit(_fit(config, windowed), _fit(config, whole))


@pytest.mark.deep
def test_windows_never_load_more_than_the_budget_or_one_batch(tmp_path, monkeypatch):
    data = _from_store(tmp_path, "similarity", 3000)
    most = []
    load = WindowedReader.load

    def measured(self, texts, opening=None):
        rows = load(self, texts, opening)
        most.append((len(texts), rows.data.nbytes))
        return rows

    monkeypatch.setattr(WindowedReader, "load", measured)
    _fit(_config("similarity", layer="hidden/1", optim=OptimConfig(batch_size=2)), data)
    assert max(texts for texts, _ in most) > 4, "several batches at a time"
    assert all(size <= 3000 or texts <= 4 for texts, size in most)


# What is recorded


def test_the_label_range_is_that_of_train(tmp_path):
    data = make_pairs("similarity")
    result = _fit(_config("similarity"), data)
    labels = data.examples["label"].to_numpy()[:64]
    assert result.facts == TaskFacts("similarity", (), (labels.min(), labels.max()))
    result.save(tmp_path)
    assert load_head(tmp_path).facts.label_range == (labels.min(), labels.max())


def test_vectors_of_graded_pairs_are_projected_and_those_of_others_pooled():
    for task in TASKS:
        data = make_pairs(task)
        head = _fit(_config(task), data).head()
        rows = data.readers["hidden/6"].features
        batch = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
        pooled = head.pooling(*batch)
        if task == "similarity":
            weight, bias = head.model.projection.weight, head.model.projection.bias
            # One product of float32.
            torch.testing.assert_close(head.embed(*batch), pooled @ weight.T + bias)
        else:
            assert torch.equal(head.embed(*batch), pooled)
        with pytest.raises(InputError, match=f"kind '{task}'.*no class scores"):
            head.logits(*batch)


def test_the_dev_metric_is_that_of_the_vectors_that_a_head_gives():
    data = make_pairs("unlabelled")
    result = _fit(_config("unlabelled"), data)
    rows = data.readers["hidden/6"].features
    z = result.head().embed(torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)).double()
    z = z / z.norm(dim=1, keepdim=True)
    first, second = (z[torch.from_numpy(side)] for side in data.split("dev").sides)
    scores = first @ second.T
    ranks = (scores >= scores.diagonal()[:, None]).sum(dim=1).double()
    assert result.best.dev_metric == pytest.approx((1 / ranks).mean().item(), rel=1e-12)


# Refusals


def _all_dev(data):
    return with_column(data, split=pa.array(["train"] * 64 + ["test"] * (len(data.examples) - 64)))


@pytest.mark.parametrize("task", TASKS)
def test_a_corpus_of_pairs_that_cannot_be_fitted_is_refused(task):
    data = make_pairs(task)
    n = len(data.examples)
    holes = data.examples["text_pair"].to_pylist()
    holes[0] = None
    one = {"label": pa.array([2.0] * n)}
    says = "all 64 train.*'both'" if task == "pair_classification" else "all 64 train labels are 2"
    if task == "unlabelled":
        one = {"text_pair": pa.array([0] * n, pa.int64())}
        says = "64 train pairs all have the same second text"
    cases = [
        (_all_dev(data), "no dev examples.*test, train"),
        (with_column(data, text_pair=pa.nulls(n, pa.int64())), "64 of 64 train.*no second text"),
        (with_column(data, text_pair=pa.array(holes, pa.int64())), "1 of 64 train.*no second"),
        (with_column(data, **one), says),
    ]
    if task == "similarity":
        cases.append((with_column(data, label=pa.nulls(n, pa.float64())), "no finite score"))
    if task == "pair_classification":
        cases.append((with_column(data, label=pa.array([0.5] * n)), "not a class index"))
    for broken, message in cases:
        with pytest.raises(InputError, match=message):
            _fit(_config(task), broken)


@pytest.mark.parametrize(
    ("task", "settings", "says"),
    [
        ("similarity", {"metric": "accuracy"}, "accuracy.*similarity.*spearman_pearson"),
        ("similarity", {"metric": "mrr"}, "mrr is not defined.*similarity"),
        ("unlabelled", {"metric": "spearman"}, "spearman.*unlabelled.*use one of mrr"),
        ("pair_classification", {"metric": "pearson"}, "pearson.*use one of accuracy, mcc, f1"),
        ("pair_classification", {"metric": "f1"}, "3 classes"),
        ("similarity", {"loss": {"kind": "cross_entropy"}}, "cross_entropy.*kind: cosine_mse"),
        ("unlabelled", {"loss": {"kind": "cosine_mse"}}, "cosine_mse.*kind: contrastive"),
        ("pair_classification", {"loss": {"kind": "contrastive"}}, "kind: cross_entropy"),
        ("unlabelled", {"head": {"kind": "mean"}}, "head mean has no parameters"),
        ("unlabelled", {"optim": {"batch_size": 1}}, "batch_size is 1"),
    ],
)
def test_a_config_for_another_task_is_refused_with_what_to_set(task, settings, says):
    fields = _config(task).model_dump(mode="json") | settings
    with pytest.raises(InputError, match=says):
        _fit(FitConfig.model_validate(fields), make_pairs(task))


def test_single_texts_are_no_pairs_and_pairs_no_single_texts():
    pairs = make_pairs("pair_classification")
    with pytest.raises(InputError, match=r"are pairs of texts.*pair_classification"):
        _fit(_config("pair_classification"), replace(pairs, task="classification"))


def test_answers_that_are_not_finite_are_an_error_and_never_a_metric():
    data = make_pairs("similarity")
    rows = data.readers["hidden/6"].features
    rows.data[rows.offsets[data.split("dev").texts[0]]] = np.inf
    with pytest.raises(PermafrostError, match=r"1 of 64 texts of hidden/6.*not finite"):
        _fit(_config("similarity"), data)


def test_the_defaults_of_the_losses_are_those_of_the_paper():
    config = FitConfig(head=MeanHead(), seed=0)
    assert config.loss.kind == "cross_entropy"
    assert "loss.kind" in config.choice()
    assert FitConfig(head=MeanHead(), seed=0, loss={"kind": "cosine_mse"}).loss == CosineMse()
    found = candidates(
        FitConfig(head=MeanHead(), seed=0, loss=Contrastive()),
        {"loss.temperature": (0.05, 0.1), "loss.similarity": ("dot", "cosine")},
    )
    assert [(c.loss.similarity, c.loss.temperature) for c in found.values()] == [
        ("dot", 0.05),
        ("dot", 0.1),
        ("cosine", 0.05),
        ("cosine", 0.1),
    ]
