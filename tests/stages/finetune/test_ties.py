"""Choices that a model cannot tell apart are not chosen by their position."""

import numpy as np

from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.ties import chosen, n_drawn
from permafrost.stages.finetune.trainee import as_batch
from permafrost.stages.graphs.assembling import Case, Item, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.storage.ragged import Ragged
from tests.stages.finetune.graph_text_fits import Pairs, fit, trainee, tuned
from tests.stages.finetune.tiny_graphs import RELATIONS, config_of, data_of


def test_the_highest_score_wins_and_each_of_several_as_often() -> None:
    names = [[f"{n} {at}" for at in range(4)] for n in range(2000)]
    assert all(chosen(np.array([0.1, 0.3, 0.2, 0.0]), own, 0, 0) == 1 for own in names)
    scores = np.array([0.5, 0.25, 0.5, 0.5])
    found = np.bincount([chosen(scores, own, 0, at) for at, own in enumerate(names)], minlength=4)
    assert found[1] == 0
    assert np.abs(found[[0, 2, 3]] - 2000 / 3).max() < 5 * np.sqrt(2000 * 2 / 9)
    moved = [own[::-1] for own in names]
    for own, back in zip(names[:50], moved, strict=False):
        assert own[chosen(scores, own, 0, 5)] == back[chosen(scores[::-1], back, 0, 5)], (
            "by the text"
        )
    assert any(chosen(scores, own, 0, 0) != chosen(scores, own, 1, 0) for own in names), (
        "by the seed"
    )


def test_of_equal_texts_each_position_is_chosen_as_often() -> None:
    names = [["only", f"twin {n}", "other", f"twin {n}"] for n in range(2000)]
    scores = np.array([0.1, 0.5, 0.2, 0.5])
    found = np.bincount([chosen(scores, own, 0, at) for at, own in enumerate(names)], minlength=4)
    assert found[[0, 2]].tolist() == [0, 0]
    assert abs(int(found[1]) - 1000) < 5 * np.sqrt(500)


def test_questions_with_the_same_texts_do_not_all_have_the_same_answer() -> None:
    """A fixed prompt beside each graph, or choices that are always yes and no."""
    scores = np.zeros(4)
    for own in (["which graph is right?"] * 4, ["a", "b", "c", "d"]):
        for seed in range(3):
            found = np.bincount([chosen(scores, own, seed, at) for at in range(2000)], minlength=4)
            assert np.abs(found - 500).max() < 5 * np.sqrt(2000 * 3 / 16)


def test_scores_tie_to_rounding() -> None:
    """A few units in the last place of float32, as one graph has at two rows of a batch."""
    one = np.float32(3.7)
    above = np.nextafter(one, np.float32(9))
    near = np.array([one, above], np.float64)
    far = np.array([one, one * np.float32(1.00001)], np.float64)
    names = [[f"{n} a", f"{n} b"] for n in range(64)]
    assert {chosen(near, own, 0, 0) for own in names} == {0, 1}
    assert {chosen(far, own, 0, 0) for own in names} == {1}
    tiny = np.array([1e-9, -1e-9])
    assert {chosen(tiny, own, 0, 0) for own in names} == {0, 1}, "around 0 of what sums to it"


def test_answers_by_graphs_alone_do_not_depend_on_the_order_of_choices(pair: Pairs) -> None:
    """All choices of a question have equal graphs: of one text whichever has the lowest hash."""
    found: list[list[str]] = []
    for step in (1, -1):
        graphs, cases = GraphCollector(len(RELATIONS)), list[Case]()
        for n in range(24):
            items = [
                Item(f"the {n} was {word}", graphs.add(["cup", "snow"], [(0, 0, 1)]))
                for word in ("under", "never", "and")[::step]
            ]
            cases.append(Case(("train", "dev", "test")[n % 3], tuple(items), 0))
        cases.sort(key=lambda case: ("train", "dev", "test").index(case.split))
        corpus = assemble("multiple_choice", cases, graphs, RELATIONS)
        data = data_of(corpus, pair("bert").backbone)
        trained = trainee(config_of(corpus, {"kind": "gnn_only"}), data)
        trained.model.eval()
        batch = as_batch(data.cases("test"))
        answers, _ = trained.answers(trained.embeddings(batch.items).z, batch)
        assert len({*answers.tolist()}) > 1
        rows = [
            int(batch.cases.items[case][answer]) for case, answer in enumerate(answers.tolist())
        ]
        items = batch.items[rows]
        texts = corpus.items.column("text").to_numpy()[items]
        found.append([corpus.texts[int(t)] for t in texts])
    assert found[0] == found[1]


def test_only_choices_that_differ_are_drawn() -> None:
    scores = [[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1, 1]]
    kinds = [[0, 1, 2], [3, 4, 5], [6, 6, 7], [8, 9, 9, 10]]
    packed = Ragged.from_arrays([np.array(own, np.float64) for own in scores])
    assert n_drawn(packed, np.concatenate(kinds)) == 2


def test_a_score_says_how_many_questions_were_drawn(pair: Pairs) -> None:
    """Where a text is cut before the choice at its end, every choice is the same input."""
    graphs, cases = GraphCollector(len(RELATIONS)), list[Case]()
    graph = graphs.add(["cup", "snow"], [(0, 0, 1)])
    for split, n_cut in (("train", 0), ("dev", 1), ("test", 3)):
        for n in range(4):
            asked = " ".join(["the"] * (60 if n < n_cut else 6))
            # Of one question both choices are the same: nothing is drawn between answers that differ.
            words = ("under", "never") if (split, n) != ("test", 0) else ("under", "under")
            cases.append(Case(split, tuple(Item(f"{asked} {word}", graph) for word in words), 0))
    corpus = assemble("multiple_choice", cases, graphs, RELATIONS)
    data = data_of(corpus, pair("bert").backbone)
    made = fit(config_of(corpus, {"kind": "text_only"}, optim={"max_epochs": 1}), data)
    metrics = score_finetuned(FinetuneScoreConfig(), tuned(made), data).metrics
    assert (metrics["n_drawn_dev"], metrics["n_drawn_test"]) == (1, 2)
