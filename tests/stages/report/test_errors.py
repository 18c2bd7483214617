"""What the best method gets wrong: chosen on dev, counted and ordered on test."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import rankdata, zscore
from sklearn.metrics import confusion_matrix

from permafrost.stages.metrics.predictions import PREDICTIONS, Answers
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.errors import (
    MAX_CLASSES,
    N_LISTED,
    confusion,
    task_errors,
    worst_classes,
    worst_grades,
    worst_partners,
    worst_searches,
)
from tests.stages.report.fake_results import FakeCorpus, Grid
from tests.stages.report.scored_cells import answers, scored_cell, two_classes
from tests.stages.report.test_report import Page

COLUMN = [("t", "accuracy")]


def corpus_of(n: int, names: tuple[str, ...] = ("no", "yes")) -> dict[str, FakeCorpus]:
    return {"t": FakeCorpus(tuple(f"text {i}" for i in range(n)), pa.table({}), names)}


def found_answers(labels, predictions, scores=None) -> Answers:
    labels, predictions = np.asarray(labels, float), np.asarray(predictions, float)
    scores = None if scores is None else np.asarray(scores, float)
    return Answers((np.arange(len(labels)),), labels, predictions, scores)


def test_the_method_is_the_best_on_dev_and_the_seed_the_smallest(tmp_path: Path):
    labels = two_classes(40)
    settings = {
        ("a", 0): (0.9, 0.5),
        ("a", 1): (0.9, 0.9),
        ("b", 2): (0.6, 0.8),
        ("b", 1): (0.5, 0.8),
    }
    cells = [
        scored_cell(tmp_path, method, labels, answers(test, labels, i), seed=seed, dev=dev)
        for i, ((method, seed), (test, dev)) in enumerate(settings.items())
    ]
    cells.append(scored_cell(tmp_path, "c", labels, labels, dev=0.99, role="control"))
    cells.append(scored_cell(tmp_path, "d", labels, labels, dev=None))
    (found,) = task_errors(read_results(cells), COLUMN, corpus_of(40), 3)
    assert (found.method, found.seed) == ("b", 1), "0.8 on dev against 0.7, whatever test says"
    assert found.dev == pytest.approx(0.8)
    assert found.confusion is not None
    assert (found.confusion.n_wrong, found.n_test) == (20, 40)
    assert len(found.worst) == 3
    assert found.worst[0].texts[0].startswith("text ")


def test_without_a_score_on_dev_or_predictions_there_is_nothing_to_show(tmp_path: Path):
    labels = two_classes(10)
    cells = [scored_cell(tmp_path, "a", labels, labels, dev=None)]
    assert task_errors(read_results(cells), COLUMN, corpus_of(10), 3) == ()
    cells = [scored_cell(tmp_path, "b", labels, labels)]
    (cells[0].folder / PREDICTIONS).unlink()
    assert task_errors(read_results(cells), COLUMN, corpus_of(10), 3) == ()


def test_confusions_are_counted_as_by_scikit_learn():
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(0, 4, (2, 200)).astype(float)
    found = confusion(labels, predictions, "abcd")
    expected = confusion_matrix(labels, predictions)
    assert np.array_equal(np.array(found.counts), expected)
    assert found.n_wrong == expected.sum() - np.trace(expected)
    assert found.confused == ()


def test_of_many_classes_the_most_frequent_confusions_are_listed():
    n = MAX_CLASSES + 1
    rng = np.random.default_rng(1)
    labels, predictions = rng.integers(0, n, (2, 500)).astype(float)
    names = [f"class {i}" for i in range(n)]
    found = confusion(labels, predictions, names)
    assert found.counts == ()
    assert len(found.confused) == N_LISTED
    expected = confusion_matrix(labels, predictions)
    np.fill_diagonal(expected, 0)
    assert [c.n for c in found.confused] == sorted(expected.ravel(), reverse=True)[:N_LISTED]
    for c in found.confused:
        i, j = names.index(c.label), names.index(c.prediction)
        assert c.n == expected[i, j]
        assert c.share == c.n / (labels == i).sum()
    assert confusion(labels, labels, names).confused == ()


def test_wrong_answers_are_ordered_by_the_probability_of_the_class_that_was_given():
    labels, predictions = [0, 1, 1, 0, 1], [1, 0, 1, 0, 0]
    scores = [0.6, 0.1, 0.99, 0.01, 0.45]
    found = worst_classes(found_answers(labels, predictions, scores), [], 9)
    assert found.rows == (1, 0, 4), "right answers are none, however sure"
    assert found.sizes == ("probability 0.900", "probability 0.600", "probability 0.550")


def test_without_probabilities_errors_that_most_results_share_come_first(tmp_path: Path):
    labels = np.array([0, 1, 2, 0])
    given = {"a": [1, 1, 0, 1], "b": [0, 1, 1, 2], "c": [0, 1, 0, 1]}
    cells = [
        scored_cell(tmp_path, method, labels, np.array(predictions), dev=0.9 - i / 10)
        for i, (method, predictions) in enumerate(given.items())
    ]
    (found,) = task_errors(read_results(cells), COLUMN, corpus_of(4, ("x", "y", "z")), 9)
    assert [(e.texts, e.label, e.prediction, e.size) for e in found.worst] == [
        (("text 2",), "z", "x", "3 of 3 wrong"),
        (("text 3",), "x", "y", "3 of 3 wrong"),
        (("text 0",), "x", "y", "1 of 3 wrong"),
    ]


@pytest.mark.parametrize("metric", ["spearman", "spearman_pearson"])
def test_grades_are_compared_by_rank(metric: str):
    rng = np.random.default_rng(2)
    labels, predictions = rng.integers(0, 6, 30).astype(float), rng.normal(size=30)
    found = worst_grades(found_answers(labels, predictions), metric, 4)
    shares = [(rankdata(x) - 0.5) / 30 for x in (predictions, labels)]
    expected = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:4]
    assert found.rows == tuple(expected.tolist())
    assert found.sizes[0] == f"{shares[0][expected[0]]:.0%} for {shares[1][expected[0]]:.0%}"


def test_grades_under_pearson_are_compared_in_standard_deviations():
    rng = np.random.default_rng(3)
    labels, predictions = 5 * rng.random(30), rng.random(30)
    found = worst_grades(found_answers(labels, predictions), "pearson", 30)
    distance = np.abs(zscore(predictions) - zscore(labels))
    assert found.rows == tuple(np.argsort(-distance, kind="stable").tolist())
    row = found.rows[0]
    assert found.sizes[0] == f"{zscore(predictions)[row]:+.1f} for {zscore(labels)[row]:+.1f}"


def test_partners_are_ordered_by_their_rank_and_found_ones_are_no_errors():
    found = worst_partners(found_answers(np.ones(4), [1, 7, 1, 3]), 9)
    assert (found.rows, found.sizes) == ((1, 3), ("6 before it", "2 before it"))


def test_the_page_shows_errors_escaped_and_cut(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    corpus = grid.corpora["t"]
    evil = "<script>alert(1)</script> " + "word " * 200
    grid.corpora["t"] = FakeCorpus((evil,) * 12, corpus.examples, ("<b>no</b>", "yes"))
    grid.tokens = {}
    path = grid.write(tmp_path / "report") / "report.html"
    page = Page(path)
    section = page.source[page.source.index('id="errors"') : page.source.index('id="choices"')]
    assert not page.all("script")
    assert "&lt;script&gt;alert(1)" in section
    assert "&lt;b&gt;no&lt;/b&gt;" in section
    texts = re.findall(r"<p>(&lt;script.*?)</p>", section)
    assert len(texts) == 2, "of four test texts two are wrong"
    assert all(text.endswith("…") and len(unescape(text)) in (279, 280) for text in texts)
    assert "2 of 4 test examples wrong" in section
    assert ["<b>no</b>", "0", "2", "0%"] in page.rows
    assert ["yes", "0", "2", "100%"] in page.rows


def test_the_number_of_errors_shown_is_a_setting(make_grid, tmp_path: Path):
    grid: Grid = make_grid(tasks=["t"], methods=["m"], controls=[], seeds=[0])
    grid.config = grid.config.model_copy(update={"n_errors": 0})
    source = (grid.write(tmp_path / "report") / "report.html").read_text()
    assert "Confusion matrix of t" in source
    assert "Worst errors" not in source


def test_the_worst_searches_are_those_of_the_lowest_score(tmp_path: Path):
    scores = np.array([0.0] * 7 + [1.0, 0.63, 0.0])
    cell = scored_cell(tmp_path, "a", np.ones(10), scores, dev=0.5)
    path = cell.folder / "metrics.json"
    path.write_text(path.read_text().replace('"accuracy"', '"ndcg_at_10"'))
    (found,) = task_errors(read_results([cell]), [("t", "ndcg_at_10")], corpus_of(10, ()), 9)
    assert [w.texts[0] for w in found.worst] == [
        *(f"text {i}" for i in (0, 1, 2, 3, 4, 5, 6, 9)),
        "text 8",
    ], "the perfect one is no error"
    assert [w.size for w in found.worst][-2:] == ["score 0.00", "score 0.63"]
    assert found.order == worst_searches(found_answers([1], [0.0]), 1).order
