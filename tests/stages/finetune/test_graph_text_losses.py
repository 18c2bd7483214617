"""Losses of graph-text models equal the paper's formulae, written term by term."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel
from torch import Tensor

from permafrost.stages import plugins
from permafrost.stages.finetune.losses import (
    ALIGNMENTS,
    GRAPH_TEXT_LOSSES,
    AlignmentConfig,
    BinaryLoss,
    ChoiceLoss,
    GraphTextLossConfig,
    InfoNceAlignment,
    RetrievalLoss,
    default_graph_text_loss,
)
from permafrost.storage.errors import InputError

OFFSETS = torch.tensor([0, 3, 4, 9])
LABELS = torch.tensor([2, 0, 1])


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())


def rows(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()


def equal(found: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """Values and gradients."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    pairs = (torch.autograd.grad(loss, inputs, retain_graph=True) for loss in (found, expected))
    for one, other in zip(*pairs, strict=True):
        assert float(other.abs().max()) > 0
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def info_nce(anchors: Tensor, keys: Tensor, tau: float) -> Tensor:
    terms: list[Tensor] = []
    for i, anchor in enumerate(anchors):
        powers = [(cosine(anchor, key) / tau).exp() for key in keys]
        terms.append(-(powers[i] / torch.stack(powers).sum()).log())
    return torch.stack(terms).sum()


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_alignment_is_equation_5_and_its_options(tau: float) -> None:
    anchors, keys = rows(6, 5), rows(6, 5, seed=1)
    there, back = info_nce(anchors, keys, tau), info_nce(keys, anchors, tau)
    loss = InfoNceAlignment(temperature=tau)
    equal(loss.of(anchors, keys), there, anchors, keys)
    both = InfoNceAlignment(temperature=tau, directions="both")
    equal(both.of(anchors, keys), (there + back) / 2, anchors, keys)
    mean = InfoNceAlignment(temperature=tau, reduction="mean")
    equal(mean.of(anchors, keys), there / 6, anchors, keys)
    assert InfoNceAlignment() == InfoNceAlignment(temperature=1, directions="one", reduction="sum")


def simplex(n: int) -> Tensor:
    """n vectors of equal length as far apart as possible: cosines -1 / (n - 1)."""
    return torch.eye(n, dtype=torch.float64) - 1 / n


@pytest.mark.parametrize(("n", "floor"), [(8, 1.173), (16, 1.818), (32, 2.488)])
def test_alignment_of_equal_embeddings_is_n_ln_n_and_its_floor_is_that_of_the_formula(
    n: int, floor: float
) -> None:
    loss = InfoNceAlignment()
    same = torch.ones(n, 4, dtype=torch.float64)
    assert float(loss.of(same, 3 * same)) == pytest.approx(n * math.log(n), abs=1e-10)
    lowest = n * math.log(1 + (n - 1) * math.exp(-n / (n - 1)))
    assert lowest / n == pytest.approx(floor, abs=5e-4)
    assert float(loss.of(simplex(n), simplex(n))) == pytest.approx(lowest, abs=1e-10)
    draw = torch.Generator().manual_seed(n)
    moved = simplex(n) + 0.05 * torch.randn(n, n, generator=draw, dtype=torch.float64)
    assert float(loss.of(moved, moved)) > lowest + 1e-3


@pytest.mark.parametrize(("reduction", "of"), [("sum", 1), ("mean", 3)])
def test_choice_is_equation_7_for_questions_of_any_number_of_choices(
    reduction: str, of: int
) -> None:
    scores = rows(9)
    terms = [
        -(part.exp()[label] / part.exp().sum()).log()
        for part, label in zip(scores.split([3, 1, 5]), LABELS, strict=True)
    ]
    loss = ChoiceLoss.model_validate({"reduction": reduction})
    equal(loss.of(scores, OFFSETS, LABELS), torch.stack(terms).sum() / of, scores)


def test_choices_in_another_order_have_the_same_loss() -> None:
    scores, order = rows(9), torch.tensor([2, 0, 1, 3, 8, 7, 6, 5, 4])
    moved = ChoiceLoss().of(scores[order], OFFSETS, torch.tensor([0, 0, 3]))
    equal(moved, ChoiceLoss().of(scores, OFFSETS, LABELS), scores)


def test_choice_stays_finite_far_from_0_and_wants_a_label_that_is_a_choice() -> None:
    scores = torch.tensor([1e4, -1e4, 0.0], dtype=torch.float32)
    found = ChoiceLoss().of(scores, torch.tensor([0, 3]), torch.tensor([1]))
    assert float(found) == 2e4
    with pytest.raises(AssertionError, match="beyond the choices"):
        ChoiceLoss().of(scores, torch.tensor([0, 2, 3]), torch.tensor([1, 1]))


@pytest.mark.parametrize(("reduction", "of"), [("sum", 1), ("mean", 3)])
def test_binary_is_equation_8(reduction: str, of: int) -> None:
    scores, labels = rows(3), torch.tensor([1, 0, 1])
    shares = 1 / (1 + (-scores).exp())
    terms = labels * shares.log() + (1 - labels) * (1 - shares).log()
    loss = BinaryLoss.model_validate({"reduction": reduction})
    equal(loss.of(scores, torch.arange(4), labels), -terms.sum() / of, scores)
    with pytest.raises(AssertionError, match="has one item"):
        loss.of(scores, torch.tensor([0, 1, 3]), labels[:2])


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_retrieval_is_equation_9_from_query_to_document(tau: float) -> None:
    queries, documents = rows(5, 4), rows(5, 4, seed=1)
    expected = info_nce(queries, documents, tau)
    for reduction, of in (("sum", 1), ("mean", 5)):
        loss = RetrievalLoss.model_validate({"temperature": tau, "reduction": reduction})
        found = loss.of(queries, documents, torch.eye(5, dtype=torch.bool))
        equal(found, expected / of, queries, documents)


def relevant(query: Tensor, document: Tensor) -> Tensor:
    """By the pairs of a batch alone."""
    pairs = set(zip(query.tolist(), document.tolist(), strict=True))
    return torch.tensor([[(q, d) in pairs for d in document.tolist()] for q in query.tolist()])


def test_a_document_of_two_queries_is_a_negative_of_neither() -> None:
    queries, documents = rows(3, 4), rows(3, 4, seed=1)
    twice = torch.stack([documents[0], documents[1], documents[0]])
    known = relevant(torch.arange(3), torch.tensor([7, 8, 7]))
    powers = [[(cosine(q, d) / 0.05).exp() for d in documents] for q in queries]
    # Among the negatives of the second query both copies are left: they are two rows of the batch.
    copies, own = (1, 2, 1), (0, 1, 0)
    terms = [
        -(of_query[mine] / (n * of_query[0] + of_query[1])).log()
        for of_query, mine, n in zip(powers, own, copies, strict=True)
    ]
    found = RetrievalLoss().of(queries, twice, known)
    equal(found, torch.stack(terms).sum(), queries, documents)
    printed = RetrievalLoss(repeated="negative").of(queries, twice, known)
    equal(printed, info_nce(queries, twice, 0.05), queries, documents)


def test_another_relevant_document_of_a_query_is_no_negative_of_it() -> None:
    queries, documents = rows(2, 4), rows(3, 4, seed=1)
    asked = torch.tensor([0, 1, 0])
    known = relevant(asked, torch.arange(3))
    terms: list[Tensor] = []
    for q, own, left in ((0, 0, (0, 1)), (1, 1, (0, 1, 2)), (0, 2, (1, 2))):
        powers = {d: (cosine(queries[q], documents[d]) / 0.05).exp() for d in left}
        terms.append(-(powers[own] / torch.stack(list(powers.values())).sum()).log())
    found = RetrievalLoss().of(queries[asked], documents, known)
    equal(found, torch.stack(terms).sum(), queries, documents)
    printed = RetrievalLoss(repeated="negative").of(queries[asked], documents, known)
    equal(printed, info_nce(queries[asked], documents, 0.05), queries, documents)


def test_what_a_third_pair_says_is_relevant_is_no_negative_either() -> None:
    """Of (query 0, document 0), (1, 1), (0, 1), (1, 2): to query 0, document 1 is relevant by the third."""
    queries = rows(2, 4)
    asked, which = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 2])
    documents = rows(3, 4, seed=1)
    judged = {0: {0, 1}, 1: {1, 2}}
    terms: list[Tensor] = []
    for pair, (q, own) in enumerate(zip(asked.tolist(), which.tolist(), strict=True)):
        left = [p for p, d in enumerate(which.tolist()) if p == pair or d not in judged[q]]
        powers = [(cosine(queries[q], documents[which[p]]) / 0.05).exp() for p in left]
        mine = (cosine(queries[q], documents[own]) / 0.05).exp()
        terms.append(-(mine / torch.stack(powers).sum()).log())
    found = RetrievalLoss().of(queries[asked], documents[which], relevant(asked, which))
    equal(found, torch.stack(terms).sum(), queries, documents)


def test_every_task_with_graphs_has_a_loss_of_its_own() -> None:
    tasks = ("multiple_choice", "classification", "unlabelled")
    found = [default_graph_text_loss(task) for task in tasks]
    assert [loss.kind for loss in found] == ["choice", "binary", "retrieval"]
    with pytest.raises(InputError, match=r"'similarity'.*classification, multiple_choice, unlab"):
        default_graph_text_loss("similarity")


class Holder(BaseModel):
    loss: GraphTextLossConfig
    alignment: AlignmentConfig = InfoNceAlignment()


MARGIN = '''
"""The right choice's score above every other by a margin."""

from typing import ClassVar, Literal

from permafrost.stages.finetune.losses import {base}


class Margin({base}):
    task_kinds: ClassVar = ("multiple_choice",)
    kind: Literal["margin"] = "margin"
    margin: float = 1.0

    def of(self, {arguments}):
        return ({first} * self.margin).sum()
'''


@pytest.mark.parametrize(
    ("base", "arguments", "field", "names"),
    [
        ("ScoreLoss", "scores, offsets, labels", "loss", GRAPH_TEXT_LOSSES.kinds),
        ("VectorLoss", "queries, documents, relevant", "loss", GRAPH_TEXT_LOSSES.kinds),
        ("Alignment", "anchors, keys", "alignment", ALIGNMENTS.kinds),
    ],
)
def test_a_file_adds_a_loss(
    tmp_path: Path, base: str, arguments: str, field: str, names: Callable[[], dict[str, type]]
) -> None:
    ours = set(names())
    path = tmp_path / "margin.py"
    path.write_text(MARGIN.format(base=base, arguments=arguments, first=arguments.split(",")[0]))
    plugins.use_files([path])
    assert set(names()) == ours | {"margin"}
    fields = {"loss": {"kind": "choice"}, field: {"kind": "margin", "margin": 0.5}}
    held = getattr(Holder.model_validate(fields), field)
    assert float(held.of(torch.ones(3), None, *[None] * (base != "Alignment"))) == 1.5
