"""Losses against formulas written out example by example."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from permafrost.stages.fit import Contrastive, CosineMse, FitConfig, TaskFacts
from permafrost.stages.fit.models import build_model
from permafrost.stages.heads import GlotHead, MeanHead, ScorerHead
from tests.stages.synthetic_fit import WIDTH, features

FACTS = {
    "classification": TaskFacts("classification", ("a", "b", "c")),
    "pair_classification": TaskFacts("pair_classification", ("a", "b", "c")),
    "similarity": TaskFacts("similarity", (), (1.0, 5.0)),
    "unlabelled": TaskFacts("unlabelled"),
}
LABELS = {
    "classification": torch.tensor([0, 2, 1, 1, 0, 2, 2, 1]),
    "pair_classification": torch.tensor([0, 2, 1, 1]),
    "similarity": torch.tensor([1.0, 4.5, 3.0, 5.0], dtype=torch.float64),
    "unlabelled": torch.ones(4, dtype=torch.int64),
}


def _config(task, head, similarity="dot"):
    losses = {"similarity": CosineMse(), "unlabelled": Contrastive(similarity=similarity)}
    loss = {"loss": losses[task]} if task in losses else {}
    return FitConfig(head=head, seed=5, **loss)


def _vectors(b, seed):
    return torch.randn(b, 6, generator=torch.Generator().manual_seed(seed))


def _log_softmax_at(row, k):
    highest = max(row)
    return row[k] - highest - math.log(sum(math.exp(x - highest) for x in row))


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_contrastive_loss_is_the_mean_of_finding_the_partner_from_both_sides(similarity):
    a, b = _vectors(5, 1).double(), _vectors(5, 2).double()
    x, y = a, b
    if similarity == "cosine":
        x, y = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
    scores = [[float(x[i] @ y[j]) / 0.5 for j in range(5)] for i in range(5)]
    there = [-_log_softmax_at(scores[i], i) for i in range(5)]
    back = [-_log_softmax_at([scores[i][j] for i in range(5)], j) for j in range(5)]
    expected = (sum(there) / 5 + sum(back) / 5) / 2
    config = Contrastive(temperature=0.5, similarity=similarity)
    # Both sides in float64.
    assert config.of(a, b, a[:0]).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("b", [2, 7])
def test_the_contrastive_loss_is_symmetric_and_ln_b_where_all_embeddings_are_equal(b, similarity):
    config = Contrastive(similarity=similarity)
    first, second = _vectors(b, 3), _vectors(b, 4)
    forth, back = config.of(first, second, first[:0]), config.of(second, first, first[:0])
    # The product of the swapped sides may be summed in another order.
    assert forth.item() == pytest.approx(back.item(), rel=1e-5)
    assert forth.item() != pytest.approx(math.log(b), rel=1e-3)
    one = _vectors(1, 5).expand(b, -1)
    assert config.of(one, one, one[:0]).item() == pytest.approx(math.log(b), rel=1e-6)


def test_a_pair_alone_in_its_batch_has_a_loss_of_zero():
    assert Contrastive().of(_vectors(1, 1), _vectors(1, 2), _vectors(0, 3)).item() == 0.0


def test_the_temperature_divides_and_defaults_to_that_of_the_released_code():
    a, b = _vectors(4, 1), _vectors(4, 2)
    assert Contrastive() == Contrastive(temperature=0.07, similarity="dot")
    scaled = Contrastive(temperature=1.0).of(a / 0.07, b, a[:0])
    assert Contrastive().of(a, b, a[:0]).item() == pytest.approx(scaled.item(), rel=1e-5)


def test_cosine_mse_is_the_mean_squared_distance_of_cosines():
    a, b, wanted = _vectors(4, 1), _vectors(4, 2), torch.tensor([0.0, 0.3, 0.9, 1.0])
    squares = []
    for x, y, w in zip(a.double(), b.double(), wanted.double(), strict=True):
        cosine = sum(x * y) / math.sqrt(sum(x * x) * sum(y * y))
        squares.append(float(cosine - w) ** 2)
    # float32 against float64 of a handful of numbers.
    assert CosineMse().of(a, b, wanted).item() == pytest.approx(sum(squares) / 4, rel=1e-5)


def _one_by_one(task, model, tokens, offsets, labels, similarity):
    """Loss of a batch, each text alone through the pooling; of pairs, first texts and then second ones."""
    texts = [tokens[lo:hi] for lo, hi in pairwise(offsets)]
    z = [model.pooling(text, torch.tensor([0, len(text)]))[0] for text in texts]
    if task == "classification":
        logits = [model.classifier.linear.weight @ v + model.classifier.linear.bias for v in z]
        return sum(-(x.log_softmax(0)[k]) for x, k in zip(logits, labels, strict=True)) / len(z)
    n = len(z) // 2
    pairs = list(zip(z[:n], z[n:], strict=True))
    if task == "pair_classification":
        weight, bias = model.classifier.linear.weight, model.classifier.linear.bias
        width = weight.shape[1] // 2
        logits = [weight[:, :width] @ a + weight[:, width:] @ b + bias for a, b in pairs]
        return sum(-(x.log_softmax(0)[k]) for x, k in zip(logits, labels, strict=True)) / n
    if task == "similarity":
        project = model.projection
        total = torch.zeros(())
        for (a, b), label in zip(pairs, labels, strict=True):
            u, v = project.weight @ a + project.bias, project.weight @ b + project.bias
            total = total + (u @ v / (u.norm() * v.norm()) - (float(label) - 1) / 4) ** 2
        return total / n
    if similarity == "cosine":
        pairs = [(a / a.norm(), b / b.norm()) for a, b in pairs]
    scores = torch.stack([torch.stack([a @ b / 0.07 for _, b in pairs]) for a, _ in pairs])
    there = sum(scores[i].logsumexp(0) - scores[i, i] for i in range(n)) / n
    back = sum(scores[:, i].logsumexp(0) - scores[i, i] for i in range(n)) / n
    return (there + back) / 2


@pytest.mark.parametrize(
    ("task", "head", "similarity"),
    [
        ("classification", ScorerHead(hidden=5), "dot"),
        ("pair_classification", ScorerHead(hidden=5), "dot"),
        ("pair_classification", GlotHead(hidden=4, tau=0.4), "dot"),
        ("similarity", MeanHead(), "dot"),
        ("similarity", GlotHead(hidden=4, tau=0.4), "dot"),
        ("unlabelled", ScorerHead(hidden=5), "cosine"),
        ("unlabelled", GlotHead(hidden=4, tau=0.4), "dot"),
    ],
)
def test_loss_and_gradients_of_a_ragged_batch_equal_a_loop_over_examples(task, head, similarity):
    rows = features(8, 3)
    tokens, offsets = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    model = build_model(_config(task, head, similarity), FACTS[task], WIDTH)
    loss = model.loss(model(tokens, offsets), LABELS[task])
    loss.backward()
    batched = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    expected = _one_by_one(task, model, tokens, offsets, LABELS[task], similarity)
    expected.backward()
    # float32, summed in another order; a temperature of 0.07 makes logits of some hundreds.
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    scale = max(float(p.grad.abs().max()) for p in model.parameters())
    for name, p in model.named_parameters():
        torch.testing.assert_close(batched[name], p.grad, rtol=1e-3, atol=1e-5 * scale, msg=name)


def test_every_task_adds_the_parameters_of_the_released_code():
    for task, extra in {
        "classification": 3 * WIDTH + 3,
        "pair_classification": 3 * 2 * WIDTH + 3,
        "similarity": WIDTH * WIDTH + WIDTH,
        "unlabelled": 0,
    }.items():
        model = build_model(_config(task, ScorerHead(hidden=5)), FACTS[task], WIDTH)
        added = sum(p.numel() for p in model.parameters()) - model.pooling.n_parameters
        assert added == extra, task


def test_graded_labels_are_scaled_by_the_range_of_train():
    rows = features(2, 1)
    tokens, offsets = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    model = build_model(_config("similarity", MeanHead()), FACTS["similarity"], WIDTH)
    encoded = model(tokens, offsets)
    cosine = functional.cosine_similarity(encoded[0], encoded[1], dim=0).item()
    for label, wanted in ((1.0, 0.0), (3.0, 0.5), (5.0, 1.0)):
        loss = model.loss(encoded, torch.tensor([label])).item()
        assert loss == pytest.approx((cosine - wanted) ** 2, rel=1e-5)
