"""Means over tasks, and the note where methods are scored by different metrics."""

import pytest

from permafrost.stages.report.entries import entry
from permafrost.stages.report.notes import metrics_note
from permafrost.stages.report.tables import Column, ResultsTable, Row, averages


def columns(*facts: tuple[str, str, str | None]) -> tuple[Column, ...]:
    return tuple(Column(t, metric, t, None, 100, category) for t, metric, category in facts)


def test_means_are_over_tasks_of_one_kind_and_then_over_all():
    tasks = columns(
        ("a", "accuracy", "classification"),
        ("b", "accuracy", "classification"),
        ("c", "accuracy", "pair_classification"),
    )
    found = [(a.heading, a.metric, a.columns) for a in averages(tasks, "same_metric")]
    assert found == [
        ("mean, classification", "accuracy", (0, 1)),
        ("mean", "accuracy", (0, 1, 2)),
    ]
    assert averages(tasks, "none") == ()
    assert averages(tasks[:1], "same_metric") == ()
    assert [a.heading for a in averages(tasks[:2], "same_metric")] == ["mean"]


def test_methods_that_are_scored_by_different_metrics_are_noted_with_what_to_write():
    tasks = columns(("sts", "spearman", "STS"), ("sts", "pearson", "STS"), ("b", "mcc", "x"))
    one = Row("m", "method", (entry([0.5]), None, entry([0.5])), (0,), (0, 0))
    other = Row("n", "method", (None, entry([0.5]), None), (0,), (0, 0))
    (note,) = metrics_note(ResultsTable(tasks, (one, other)), {"b": "mcc"})
    assert "Methods on sts are scored by different metrics (spearman, pearson)" in note
    assert "'metrics: {sts: spearman}'" in note
    assert "own `metric` wins over that, so leave it out there, or give it spearman, too" in note
    mean = columns(("sts", "spearman_pearson", "STS"), ("sts", "pearson", "STS"), ("b", "mcc", "x"))
    (note,) = metrics_note(ResultsTable(mean, (one, other)), {"sts": "spearman_pearson"})
    assert "'metrics: {sts: pearson}'" in note, "which every method can have"
    for named in ("spearman", "pearson"):
        (note,) = metrics_note(ResultsTable(tasks, (one, other)), {"sts": named})
        assert "metrics: {" not in note, "which the experiment has"
        assert f"The experiment's `metrics` has {named}, but a method's own `metric` wins" in note
        assert ("`kind: embed`" in note) is (named == "pearson")
    both = Row("o", "method", (entry([0.5]), entry([0.5]), None), (0,), (0, 0))
    assert metrics_note(ResultsTable(tasks, (one, other, both)), {}) == ()
    assert metrics_note(ResultsTable(tasks[:1], (one,)), {}) == ()


def test_different_metrics_are_averaged_only_where_that_is_asked_for():
    tasks = columns(("a", "mcc", "x"), ("b", "accuracy", "x"), ("c", "spearman", "y"))
    assert averages(tasks, "same_metric") == ()
    found = [(a.heading, a.metric, a.columns) for a in averages(tasks, "any_metric")]
    assert found == [("mean, x", "mixed", (0, 1)), ("mean", "mixed", (0, 1, 2))]
    twice = columns(("a", "mcc", "x"), ("a", "f1", "x"), ("b", "mcc", "x"))
    assert [a.columns for a in averages(twice, "any_metric")] == [(0, 2)]


def test_kinds_of_task_can_count_alike():
    tasks = columns(("a", "x", "STS"), ("b", "y", "Retrieval"), ("c", "x", "STS"))
    found = averages(tasks, "mteb")
    assert [(a.heading, a.kinds) for a in found] == [
        ("mean, STS", ()),
        ("mean", ()),
        ("mean of kinds", ((0, 2), (1,))),
    ]
    row = Row("m", "method", tuple(entry([v]) for v in (0.2, 0.9, 0.4)), (0,), (0, 0))
    table = ResultsTable(tasks, (row,), averages=found)
    assert [table.average(row, a) for a in found] == pytest.approx([0.3, 0.5, 0.6])
    assert averages(tasks[:2], "mteb")[-1].heading == "mean", "every kind has one task"


def test_tasks_of_training_can_be_left_out_of_means():
    trained = Column("pairs", "mrr", "pairs", None, 100, "retrieval")
    names = {"a": "STS", "b": "Retrieval", "c": "STS"}
    evaluated = [Column(t, "x", t, None, 100, kind, "evaluations") for t, kind in names.items()]
    tasks = (trained, *evaluated)
    found = averages(tasks, "evaluations")
    assert [(a.heading, a.columns, a.kinds) for a in found] == [
        ("mean, STS", (1, 3), ()),
        ("mean", (1, 2, 3), ()),
        ("mean of kinds", (1, 2, 3), ((1, 3), (2,))),
    ]
    assert averages(tasks, "mteb")[1].columns == (0, 1, 2, 3)
    assert averages((trained,), "evaluations") == ()
