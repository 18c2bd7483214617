"""Hard negatives in the contrastive loss: formula, gradients, batches, and what they leave alone."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch

from permafrost.stages.fit import Contrastive, FitConfig, FitData, OptimConfig, TaskFacts, fit
from permafrost.stages.fit.candidates import candidates
from permafrost.stages.fit.models import build_model
from permafrost.stages.fit.sources import source_of, source_with_negatives
from permafrost.stages.fit.splits import splits
from permafrost.stages.heads import GlotHead, ScorerHead
from permafrost.stages.scoring.score import score
from permafrost.stages.scoring.scored import ScoreConfig
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import InMemoryReader, WindowedReader, open_reader
from tests.stages.synthetic_fit import WIDTH, features, make_pairs, same_fit, with_column
from tests.storage.small_store import filled_store

ADD = Contrastive(similarity="cosine", temperature=0.2, hard_negatives="add")
IGNORE = ADD.model_copy(update={"hard_negatives": "ignore"})


def config(loss=ADD, **settings):
    optim = OptimConfig(lr=1e-2, batch_size=10, max_epochs=3)
    fields = {"seed": 3, "optim": optim, "metric": "mrr"} | settings
    return FitConfig(head=ScorerHead(hidden=8), loss=loss, **fields)


def with_negatives(data, seed=0, most=3, split="train"):
    """None to `most` negatives for every example of a split, none for the others."""
    rng = np.random.default_rng(seed)
    n_texts = len(data.digests)
    lists = [
        rng.choice(n_texts, rng.integers(0, most + 1), replace=False).tolist() if s == split else []
        for s in data.examples["split"].to_pylist()
    ]
    column = pa.array(lists, pa.list_(pa.int64()))
    return replace(data, examples=data.examples.append_column("negatives", column))


def vectors(n, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=draw, dtype=torch.float64)


def log_softmax_at(row, k):
    highest = max(row)
    return row[k] - highest - math.log(sum(math.exp(x - highest) for x in row))


# The loss


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize(("b", "m"), [(4, 7), (4, 1), (1, 3), (4, 0)])
def test_negatives_are_more_candidates_from_the_first_side_only(b, m, similarity):
    first, second, negatives = vectors(b, 1), vectors(b, 2), vectors(m, 3)
    x, y, z = first, second, negatives
    if similarity == "cosine":
        x, y, z = (v / v.norm(dim=1, keepdim=True) for v in (x, y, z))
    there = back = 0.0
    for i in range(b):
        candidates = [float(x[i] @ y[j]) / 0.5 for j in range(b)]
        candidates += [float(x[i] @ z[k]) / 0.5 for k in range(m)]
        there -= log_softmax_at(candidates, i) / b
        back -= log_softmax_at([float(x[j] @ y[i]) / 0.5 for j in range(b)], i) / b
    loss = Contrastive(temperature=0.5, similarity=similarity, hard_negatives="add")
    found = loss.of(first, second, negatives).item()
    assert found == pytest.approx((there + back) / 2, rel=1e-12)


def test_no_negatives_is_the_loss_without_the_argument():
    first, second = vectors(5, 1).float(), vectors(5, 2).float()
    plain = IGNORE.of(first, second, first[:0])
    assert torch.equal(plain, ADD.of(first, second, vectors(0, 3).float()))
    assert ADD.of(first, second, vectors(2, 3).float()) > plain


def test_the_gradient_reaches_the_negatives_and_pushes_them_away():
    first, second = vectors(3, 1), vectors(3, 2)
    negatives = vectors(4, 3).requires_grad_()
    loss = Contrastive(temperature=0.5, hard_negatives="add")
    loss.of(first, second, negatives).backward()
    assert (negatives.grad.abs().sum(dim=1) > 0).all()
    # d loss / d negative_k = sum_i softmax_ik first_i / (2 b temperature)
    logits = torch.cat([first @ second.T, first @ negatives.detach().T], dim=1) / 0.5
    expected = logits.softmax(dim=1)[:, 3:].T @ first / (2 * 3 * 0.5)
    torch.testing.assert_close(negatives.grad, expected, rtol=1e-12, atol=1e-14)


def test_loss_and_gradients_of_a_ragged_batch_equal_a_loop_over_texts():
    """Two pairs, then three negatives, through a head: each text alone gives the same."""
    rows = features(7, 3)
    tokens, offsets = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    model = build_model(config(), TaskFacts("unlabelled"), WIDTH)
    labels = torch.ones(2, dtype=torch.int64)
    loss = model.loss(model(tokens, offsets), labels)
    loss.backward()
    batched = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    z = [
        model.pooling(tokens[lo:hi], torch.tensor([0, hi - lo]))[0] for lo, hi in pairwise(offsets)
    ]
    z = [v / v.norm() for v in z]
    total = torch.zeros(())
    for i in range(2):
        forth = torch.stack([z[i] @ other / 0.2 for other in z[2:]])
        back = torch.stack([z[j] @ z[2 + i] / 0.2 for j in range(2)])
        total = total + (forth.logsumexp(0) - forth[i] + back.logsumexp(0) - back[i]) / 4
    total.backward()
    # float32, summed in another order.
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    for name, p in model.named_parameters():
        torch.testing.assert_close(batched[name], p.grad, rtol=1e-3, atol=1e-6, msg=name)


# Batches


def test_a_batch_holds_its_pairs_and_then_the_negatives_of_all_of_them():
    data = with_negatives(make_pairs("unlabelled", n_train=23))
    train = data.split("train")
    source = source_with_negatives(train, data.reader("hidden/6"))
    rows = data.readers["hidden/6"].features
    counts = set()
    for picked, batch in source.shuffled(5, 7, 1):
        expected = [*train.sides[0][picked], *train.sides[1][picked]]
        for example in picked:
            expected += train.negatives[int(example)].tolist()
        assert len(batch) == len(expected)
        for i, text in enumerate(expected):
            assert np.array_equal(batch[i], rows[int(text)])
        counts.add(len(expected) - 2 * len(picked))
    assert len(counts) > 1, "batches with another number of negatives"
    plain = source_of(train, data.reader("hidden/6"))
    order = [p.tolist() for p, _ in plain.shuffled(5, 7, 1)]
    assert [p.tolist() for p, _ in source.shuffled(5, 7, 1)] == order


def from_store(folder, budget):
    small = filled_store(folder, n_texts=40, whole_span=True)
    reader = open_reader(small.store, "hidden/1", small.digests, budget_bytes=budget)
    rng = np.random.default_rng(0)
    examples = pa.table(
        {
            "split": ["train"] * 40 + ["dev"] * 20,
            "text": rng.integers(0, 40, 60),
            "text_pair": rng.integers(0, 40, 60),
            "label": pa.nulls(60, pa.float64()),
        }
    )
    plain = FitData({"hidden/1": reader}, examples, (), tuple(small.digests), "unlabelled")
    return with_negatives(plain)


def test_windows_of_a_store_train_as_memory_does(tmp_path):
    windowed, whole = from_store(tmp_path / "a", 2000), from_store(tmp_path / "b", 1 << 30)
    assert isinstance(windowed.readers["hidden/1"], WindowedReader)
    assert isinstance(whole.readers["hidden/1"], InMemoryReader)
    settings = config(layer="hidden/1")
    same_fit(
        fit(settings, windowed, SilentProgress()),
        fit(settings, whole, SilentProgress()),
    )


# Fits


def test_ignored_negatives_change_nothing_and_added_ones_do():
    plain = make_pairs("unlabelled")
    data = with_negatives(plain)
    ignored = fit(config(IGNORE), data, SilentProgress())
    same_fit(ignored, fit(config(IGNORE), plain, SilentProgress()))
    added = fit(config(ADD), data, SilentProgress())
    same_fit(added, fit(config(ADD), data, SilentProgress()))
    # More candidates to be told from: a higher loss from the first step on.
    assert added.log[0].loss > ignored.log[0].loss
    assert added.history != ignored.history


def test_a_grid_may_compare_with_and_without():
    found = candidates(config(IGNORE), {"loss.hard_negatives": ("ignore", "add")})
    # Values of a grid come in the order given.
    assert list(found.values()) == [config(IGNORE), config(ADD)]


def test_dev_and_test_rank_among_second_texts_only():
    """Negatives of dev and test are neither rivals nor read."""
    plain = make_pairs("unlabelled")
    data = with_negatives(plain)
    head = fit(config(ADD), data, SilentProgress()).head()
    everywhere = with_column(
        data,
        negatives=pa.array([[0, 1, 2]] * len(data.examples), pa.list_(pa.int64())),
    )
    without = score(ScoreConfig(), head, plain)
    found = score(ScoreConfig(), head, everywhere)
    assert found.predictions.equals(without.predictions)
    for name in ("dev", "test", "dev_mrr", "test_mrr"):
        assert found.metrics[name] == without.metrics[name]


def test_shuffled_partners_take_their_negatives_along():
    data = with_negatives(make_pairs("unlabelled"))
    train, _ = splits(3, "true", data)
    mixed, _ = splits(3, "shuffled", data)
    true = {(int(p), *n.tolist()) for p, n in zip(train.sides[1], train.negatives, strict=True)}
    moved = {(int(p), *n.tolist()) for p, n in zip(mixed.sides[1], mixed.negatives, strict=True)}
    assert moved == true
    assert mixed.sides[1].tolist() != train.sides[1].tolist()


def twins(n_train=160, n_dev=40):
    """A negative has the topic of the partner, which says much, and the other sign, which is faint.

    In dev every partner has such a rival: who goes by the topic alone finds half of them first.
    """
    rng = np.random.default_rng(4)
    n = n_train + n_dev
    topic = 2 * rng.normal(size=(n, WIDTH - 1)).astype(np.float32)
    topic[n_train::2] = topic[n_train + 1 :: 2]
    sign = rng.choice([-1.0, 1.0], (n, 1)).astype(np.float32)
    sign[n_train::2] = -sign[n_train + 1 :: 2]
    seen = [topic + 0.5 * rng.normal(size=topic.shape) for _ in range(3)]
    sides = [np.hstack([t, 0.3 * s * sign]) for t, s in zip(seen, (1, 1, -1), strict=True)]
    tokens = np.concatenate(sides).astype(np.float32)
    states = Ragged(tokens, np.arange(3 * n + 1, dtype=np.int64))
    first, second, negative = np.arange(3 * n).reshape(3, n)
    examples = pa.table(
        {
            "split": ["train"] * n_train + ["dev"] * n_dev,
            "text": first,
            "text_pair": second,
            "label": pa.nulls(n, pa.float64()),
            "negatives": pa.array([[i] for i in negative], pa.list_(pa.int64())),
        }
    )
    digests = tuple(f"{i:064x}" for i in range(3 * n))
    readers = {"hidden/6": InMemoryReader("hidden/6", states)}
    return FitData(readers, examples, (), digests, "unlabelled")


@pytest.mark.deep
def test_hard_negatives_teach_what_batches_do_not():
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=15)
    found = {}
    for loss in (ADD, IGNORE):
        settings = config(loss, optim=optim).model_copy(update={"head": GlotHead(hidden=16)})
        found[loss.hard_negatives] = fit(settings, twins(), SilentProgress()).best.dev_metric
    assert found["add"] > 0.95
    assert found["ignore"] < 0.85


def test_adding_negatives_that_are_not_there_is_refused():
    data = make_pairs("unlabelled")
    with pytest.raises(InputError, match="hard_negatives is 'add', but no train example"):
        fit(config(ADD), data, SilentProgress())
    with pytest.raises(InputError, match=r"no train example.*'negative' in the corpus' task"):
        fit(config(ADD), with_negatives(data, split="dev"), SilentProgress())
    fit(config(IGNORE), with_negatives(data, split="dev"), SilentProgress())
