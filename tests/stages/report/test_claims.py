"""What came of claims about methods: by the paired bootstrap, on each task or on their mean."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from scipy.stats import t as student

from permafrost.stages.metrics.bootstrap import paired_bootstrap
from permafrost.stages.metrics.predictions import PREDICTIONS
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.claim_kinds import Within
from permafrost.stages.report.claims import (
    Outcome,
    claim_results,
    claims_summary,
    claims_table,
)
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.curve_claims import NO_CURVES
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.tables import tabulate
from tests.stages.report.claimed_cells import LABELS, PAIR, REPORT, N, came_of, cell
from tests.stages.report.scored_cells import answers, scored_cell


@pytest.mark.parametrize(
    ("good", "other", "gap", "outcome"),
    [
        (0.9, 0.7, None, "confirmed"),
        (0.9, 0.7, 0.01, "confirmed"),  # narrow enough, as zero lies outside
        (0.7, 0.9, None, "contrary"),
        (0.8, 0.79, None, "within noise"),
        (0.8, 0.79, 20.0, "within noise"),
        (0.8, 0.79, 0.5, "not testable"),
    ],
)
def test_a_claim_is_held_against_the_interval_of_the_difference(
    tmp_path: Path, good: float, other: float, gap: float | None, outcome: str
):
    result = came_of(
        [cell(tmp_path, "good", good), cell(tmp_path, "other", other, draw=1)], gap=gap
    )
    (one,) = result.comparisons
    assert (one.outcome, result.outcome) == (outcome, outcome)
    reference = paired_bootstrap(
        "accuracy",
        LABELS,
        answers(good, LABELS, 0),
        answers(other, LABELS, 1),
        n_resamples=REPORT.bootstrap.n_resamples,
        seed=REPORT.bootstrap.seed,
    )
    assert one.tested == reference
    assert one.value == pytest.approx(good - other)


def test_every_task_and_method_is_a_comparison_and_outcomes_are_counted(tmp_path: Path):
    cells = [
        *(cell(tmp_path, "good", right, task) for task, right in (("a", 0.9), ("b", 0.6))),
        *(cell(tmp_path, "other", 0.7, task, draw=1) for task in "ab"),
        cell(tmp_path, "third", 0.5, "a", draw=2),
    ]
    result = came_of(cells, lower=("other", "third"))
    assert [(c.on, c.lower, c.outcome) for c in result.comparisons] == [
        ("a", "other", "confirmed"),
        ("b", "other", "contrary"),
        ("a", "third", "confirmed"),
        ("b", "third", "not run"),
    ]
    assert result.outcome == "confirmed in 2 of 4, contrary in 1, not run in 1"
    assert came_of(cells, tasks=("b", "c")).counts == {"contrary": 1, "not run": 1}
    (row, *_) = claims_table([result], 0.95).rows
    low, high = result.comparisons[0].tested.low, result.comparisons[0].tested.high
    assert row == ("c", "a", "good", "other", "confirmed", "+20.0", f"{100 * low:.1f} to {100 * high:.1f}",
                   "0.005")  # fmt: skip
    (written,) = claims_summary([result])
    assert written["comparisons"][3]["interval"] is None


def test_a_task_that_neither_was_run_on_counts_where_it_is_named_alone(tmp_path: Path):
    cells = [
        *(
            cell(tmp_path, name, right, "a", draw)
            for draw, (name, right) in enumerate(PAIR.items())
        ),
        cell(tmp_path, "third", 0.5, "b", draw=2),
    ]
    assert came_of(cells).counts == {"confirmed": 1}
    assert came_of(cells, tasks=("a", "b")).counts == {"confirmed": 1, "not run": 1}
    assert came_of(cells, higher="fourth", lower=("fifth",)).counts == {"not run": 2}


def test_a_method_that_is_a_control_on_one_task_alone_is_held_on_both(tmp_path: Path):
    cells = [
        *(cell(tmp_path, "good", 0.9, task) for task in "ab"),
        cell(tmp_path, "other", 0.7, "a", draw=1),
        replace(cell(tmp_path, "other", 0.5, "b", draw=1), role="control"),
    ]
    result = came_of(cells)
    assert [(c.on, c.outcome) for c in result.comparisons] == [
        ("a", "confirmed"),
        ("b", "confirmed"),
    ]


def test_scores_are_not_about_the_same_as_themselves(tmp_path: Path):
    with pytest.raises(ValidationError, match="method is 'a', and so is one of 'of'"):
        Within(kind="within", says="c", method="a", of=("b", "a"), points=1.0)


def test_of_a_mean_there_is_one_comparison_over_what_both_were_run_on(tmp_path: Path):
    cells = [
        *(
            cell(tmp_path, "good", right, task)
            for task, right in (("a", 0.9), ("b", 0.6), ("c", 0.9))
        ),
        *(cell(tmp_path, "other", 0.7, task, draw=1) for task in "ab"),
    ]
    result = came_of(cells, over="mean")
    (one,) = result.comparisons
    assert one.on == "mean of 2 tasks"
    assert one.value == pytest.approx((0.2 - 0.1) / 2)
    assert one.tested.value == pytest.approx(one.value)
    assert one.outcome == "confirmed"


def test_the_page_says_what_every_outcome_means():
    template = files("permafrost.stages.report") / "claims.html.j2"
    said = " ".join(template.read_text(encoding="utf-8").lower().split())
    assert [outcome for outcome in get_args(Outcome) if outcome not in said] == []


def test_a_claim_over_a_mean_is_about_the_mean_that_the_table_prints(tmp_path: Path):
    right = {"trained on": (0.6, 0.9), "a": (0.9, 0.7), "b": (0.8, 0.7)}
    cells = [
        replace(
            cell(tmp_path, method, shares[i], task, draw=i),
            part="tasks" if task == "trained on" else "evaluations",
        )
        for task, shares in right.items()
        for i, method in enumerate(("good", "other"))
    ]
    report = REPORT.model_copy(update={"averages": "evaluations"})
    (one,) = came_of(cells, report, over="mean").comparisons
    assert (one.on, one.outcome) == ("mean of 2 tasks", "confirmed")
    assert one.value == pytest.approx((0.2 + 0.1) / 2)
    (named,) = came_of(cells, report, over="mean", tasks=("trained on", "a")).comparisons
    assert (named.on, named.value) == ("mean of 2 tasks", pytest.approx((-0.3 + 0.2) / 2))
    (every,) = came_of(cells, over="mean").comparisons
    assert every.on == "mean of 3 tasks"


def test_without_the_answers_a_difference_is_shown_and_not_tested(tmp_path: Path):
    cells = [cell(tmp_path, "good", 0.9), cell(tmp_path, "other", 0.7, draw=1)]
    (cells[1].folder / PREDICTIONS).unlink()
    (one,) = came_of(cells).comparisons
    assert (one.outcome, one.tested) == ("not tested", None)
    assert one.value == pytest.approx(0.2)


GAPS = {
    "alike on all": ((0.10, 0.12, 0.11, 0.09), "confirmed"),
    "on one alone": ((0.30, 0.0, -0.01, 0.01), "within noise"),
    "the other way": ((-0.10, -0.12, -0.11), "contrary"),
}


@pytest.mark.parametrize("case", GAPS)
def test_where_a_task_has_no_answers_a_mean_is_tested_over_tasks(tmp_path: Path, case: str):
    gaps, outcome = GAPS[case]
    cells = [
        cell(tmp_path, method, 0.5 + (gap if method == "good" else 0), f"t{i}", draw=i)
        for i, gap in enumerate(gaps)
        for method in ("good", "other")
    ]
    (cells[0].folder / PREDICTIONS).unlink()
    result = came_of(cells, over="mean")
    (one,) = result.comparisons
    n, error = len(gaps), np.std(gaps, ddof=1) / np.sqrt(len(gaps))
    wide = student.ppf(0.975, n - 1) * error
    assert one.tested.over == "tasks"
    assert one.tested.value == pytest.approx(np.mean(gaps))
    assert (one.tested.low, one.tested.high) == pytest.approx(
        (np.mean(gaps) - wide, np.mean(gaps) + wide)
    )
    p = 2 * student.sf(abs(np.mean(gaps)) / error, n - 1)
    assert one.tested.p == pytest.approx(p)
    assert one.outcome == outcome
    (row,) = claims_table([result], 0.95).rows
    assert row[-1].endswith(" over tasks")
    assert claims_summary([result])[0]["comparisons"][0]["over"] == "tasks"


def test_methods_on_other_examples_are_not_tested_over_tasks_either(tmp_path: Path):
    cells = [
        cell(tmp_path, method, 0.9 - near if method == "good" else 0.7, f"t{i}", draw=1)
        for i, near in enumerate((0.0, 0.01, 0.02))
        for method in ("good", "other")
    ]
    path = cells[1].folder / PREDICTIONS
    table = pq.read_table(path)
    moved = table.set_column(1, table.column_names[1], [np.arange(1, N + 1)])
    pq.write_table(moved, path)
    (one,) = came_of(cells, over="mean").comparisons
    assert (one.outcome, one.tested) == ("not tested", None)


@pytest.mark.filterwarnings("error")
def test_gaps_that_differ_by_rounding_alone_have_no_spread(tmp_path: Path):
    scores = {"good": (0.9, 0.8, 0.7), "other": (0.7, 0.6, 0.5), "same": (0.9, 0.8, 0.7)}
    cells = [
        cell(tmp_path, method, right, f"t{i}", draw=1)
        for method, by_task in scores.items()
        for i, right in enumerate(by_task)
    ]
    (cells[0].folder / PREDICTIONS).unlink()
    nudged = json.loads((cells[-1].folder / "metrics.json").read_text())
    nudged["test"] = 0.1 + 0.2 + 0.4  # 0.7 but for rounding
    (cells[-1].folder / "metrics.json").write_text(json.dumps(nudged))
    other, same = came_of(cells, lower=("other", "same"), over="mean").comparisons
    assert other.outcome == "confirmed"
    assert other.tested.low == other.tested.high == pytest.approx(0.2)
    assert (same.outcome, same.tested.p) == ("within noise", 1.0)


def test_two_tasks_are_no_sample_and_equal_gaps_have_no_spread(tmp_path: Path):
    cells = [
        cell(tmp_path, method, right, f"t{i}", draw=1)
        for i in range(3)
        for method, right in (("good", 0.9), ("other", 0.7))
    ]
    (cells[0].folder / PREDICTIONS).unlink()
    (one,) = came_of(cells[:4], over="mean").comparisons
    assert (one.outcome, one.tested) == ("not tested", None)
    (one,) = came_of(cells, over="mean").comparisons
    assert one.tested.low == one.tested.high == pytest.approx(0.2)
    assert one.outcome == "confirmed"


ALIKE = {
    "inside": (0.8, 0.8, 20.0, "confirmed"),
    "inside, though the one is significantly higher": (0.9, 0.7, 40.0, "confirmed"),
    "wholly above": (0.9, 0.6, 5.0, "contrary"),
    "wholly below": (0.6, 0.9, 5.0, "contrary"),
    "across an end": (0.9, 0.7, 20.0, "undecided"),
    "wider than the points": (0.8, 0.8, 1.0, "undecided"),
}


@pytest.mark.parametrize("case", ALIKE)
def test_scores_about_the_same_are_told_by_the_whole_interval(tmp_path: Path, case: str) -> None:
    """The interval by `paired_bootstrap`, and the rule written out."""
    one, two, points, outcome = ALIKE[case]
    results = read_results([cell(tmp_path, "a", one), cell(tmp_path, "b", two, draw=1)])
    table = annotated(tabulate(results), results, REPORT)
    claim = {"kind": "within", "says": "c", "method": "a", "of": ["b"], "points": points}
    claims = ReportConfig.model_validate({"title": "t", "claims": [claim]}).claims
    (result,) = claim_results(claims, table, REPORT.bootstrap, NO_CURVES)
    (found,) = result.comparisons
    reference = paired_bootstrap(
        "accuracy",
        LABELS,
        answers(one, LABELS, 0),
        answers(two, LABELS, 1),
        n_resamples=REPORT.bootstrap.n_resamples,
        seed=REPORT.bootstrap.seed,
    )
    assert found.tested == reference
    low, high = 100 * reference.low, 100 * reference.high
    is_inside = max(abs(low), abs(high)) <= points
    is_outside = min(abs(low), abs(high)) > points and low * high > 0
    by_hand = "confirmed" if is_inside else "contrary" if is_outside else "undecided"
    assert found.outcome == by_hand == outcome
    assert (found.higher, found.lower) == ("a", "b")
    (written,) = claims_summary([result])
    assert (written["kind"], written["points"]) == ("within", points)


def test_about_the_same_is_said_of_each_task_or_of_their_mean_and_of_those_that_were_run(
    tmp_path: Path,
) -> None:
    """On either task far apart, on average not."""
    cells = [
        cell(tmp_path, method, right, task, draw)
        for task, scores in (("t1", (0.9, 0.6)), ("t2", (0.6, 0.9)))
        for draw, (method, right) in enumerate(zip("ab", scores, strict=True))
    ]
    cells.append(cell(tmp_path, "a", 0.9, "t3"))
    results = read_results(cells)
    table = annotated(tabulate(results), results, REPORT)
    by_task, mean = (
        Within(kind="within", says="c", method="a", of=("b",), points=12.0, over=over)
        for over in ("tasks", "mean")
    )
    on_each, on_mean = claim_results([by_task, mean], table, REPORT.bootstrap, NO_CURVES)
    assert [(c.on, c.outcome) for c in on_each.comparisons] == [
        ("t1", "contrary"),
        ("t2", "contrary"),
        ("t3", "not run"),
    ]
    assert [(c.on, c.outcome) for c in on_mean.comparisons] == [("mean of 2 tasks", "confirmed")]


def test_without_the_answers_about_the_same_is_not_tested(tmp_path: Path) -> None:
    cells = [cell(tmp_path, "a", 0.8), cell(tmp_path, "b", 0.8, draw=1)]
    (cells[1].folder / PREDICTIONS).unlink()
    results = read_results(cells)
    table = annotated(tabulate(results), results, REPORT)
    said = Within(kind="within", says="c", method="a", of=("b",), points=50.0)
    (result,) = claim_results([said], table, REPORT.bootstrap, NO_CURVES)
    assert (result.outcome, result.comparisons[0].tested) == ("not tested", None)


def test_a_mean_is_of_all_tasks_that_the_claim_names(tmp_path: Path) -> None:
    cells = [cell(tmp_path, m, PAIR[m], t, i) for t in "ab" for i, m in enumerate(PAIR)]
    (both,) = came_of(cells, over="mean", tasks=("a", "b")).comparisons
    assert (both.on, both.value is None) == ("mean of 2 tasks", False)
    (lacking,) = came_of(cells[:3], over="mean", tasks=("a", "b")).comparisons
    (misspelt,) = came_of(cells, over="mean", tasks=("a", "bb")).comparisons
    assert lacking.outcome == misspelt.outcome == "not run"


def test_there_is_no_mean_of_metrics_that_differ(tmp_path: Path) -> None:
    cells = [
        scored_cell(
            *(tmp_path, method, LABELS, answers(right, LABELS, i)), task=task, metric=metric
        )
        for task, metric in (("a", "accuracy"), ("b", "mcc"))
        for i, (method, right) in enumerate(PAIR.items())
    ]
    for tasks in ((), ("a", "b")):
        (one,) = came_of(cells, over="mean", tasks=tasks).comparisons
        assert (one.on, one.value) == ("mean of 2 tasks (accuracy, mcc)", None)
        assert one.outcome == "no mean"
        printed = REPORT.model_copy(update={"averages": "any_metric"})
        (mixed,) = came_of(cells, printed, over="mean", tasks=tasks).comparisons
        assert (mixed.on, mixed.value is None) == ("mean of 2 tasks", False)
    (named,) = came_of(cells, over="mean", tasks=("a",)).comparisons
    assert named.outcome == "confirmed"


def test_where_the_table_prints_no_mean_there_is_one_of_the_same_metric(tmp_path: Path) -> None:
    cells = [cell(tmp_path, m, PAIR[m], t, i) for t in "ab" for i, m in enumerate(PAIR)]
    third = scored_cell(
        *(tmp_path, "third", LABELS, answers(0.8, LABELS, 2)), task="a", metric="mcc"
    )
    silent = REPORT.model_copy(update={"averages": "none"})
    for given, n in ((cells, "2 tasks"), ([*cells[:2], third], "1 task")):
        (one,) = came_of(given, silent, over="mean").comparisons
        assert (one.on, one.outcome) == (f"mean of {n}", "confirmed")


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"higher": "x", "lower": ["y", "x"]}, "higher is 'x', and so is one of 'lower'"),
        ({"higher": "x", "lower": ["y", "z", "y"]}, "lower names 'y' twice"),
        ({"kind": "within", "method": "x", "of": ["y", "y"], "points": 1}, "of names 'y' twice"),
        ({"kind": "same_best", "by": ["x", "y"], "of": ["z", "z"]}, "of names 'z' twice"),
        ({"kind": "same_best", "by": ["x", "x"], "of": ["y", "z"]}, "by names 'x' twice"),
    ],
)
def test_a_method_is_not_held_against_itself_nor_counted_twice(
    claim: dict[str, object], says: str
) -> None:
    with pytest.raises(ValidationError, match=says):
        ReportConfig.model_validate({"title": "t", "claims": [{"says": "c", **claim}]})
