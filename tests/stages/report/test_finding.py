"""The sentence on top: who is best, how sure that is, and what it says where nothing can be said."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.metrics.predictions import PREDICTIONS
from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.report.config import CurveAxis, ReportConfig
from permafrost.stages.report.finding import finding
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.tables import tabulate
from tests.stages.report.scored_cells import answers, scored_cell, two_classes

N = 400
REPORT = ReportConfig(title="t", bootstrap=BootstrapConfig(n_resamples=400))
LABELS = two_classes(N)


def cell(folder: Path, method: str, right: float, task: str = "t", draw: int = 0, **more) -> Cell:
    given = answers(right, LABELS, draw)
    role = "control" if method == "chance" else "method"
    return scored_cell(folder, method, LABELS, given, task=task, role=role, **more)


def said(cells: list[Cell], config: ReportConfig = REPORT, *, has_gaps: bool = False) -> str:
    results = read_results(cells)
    return finding(annotated(tabulate(results), results, config), config, has_gaps=has_gaps)


def test_on_one_task_the_numbers_are_those_of_the_table(tmp_path: Path):
    rights = {"good": 0.9, "close": 0.89, "bad": 0.6, "chance": 0.5}
    cells = [cell(tmp_path, m, r, draw=i) for i, (m, r) in enumerate(rights.items())]
    results = read_results(cells)
    table = annotated(tabulate(results), results, REPORT)
    ours = table.standings[0].entries["good"]
    near = table.standings[0].against("close")
    assert near is not None
    assert near.difference.p > 0.05
    assert finding(table, REPORT) == (
        f"good scores highest on t, with accuracy 90.0 (95% interval {100 * ours.low:.1f} to "
        f"{100 * ours.high:.1f}): within noise of close (89.0, p = {near.difference.p:.2f}); "
        "40.0 above the control, chance (50.0, p = 0.005)."
    )


def test_the_next_best_beyond_noise_is_named_with_the_distance(tmp_path: Path):
    cells = [cell(tmp_path, "good", 0.9), cell(tmp_path, "bad", 0.6, draw=1)]
    assert said(cells).endswith("): 30.0 above bad (60.0, p = 0.005); there is no control.")


@pytest.mark.parametrize(("majority", "is_told"), [(0.7, False), (0.9, True), (0.93, True)])
def test_a_constant_answer_that_is_as_good_as_all_methods_is_told(
    tmp_path: Path, majority: float, is_told: bool
):
    rights = {"good": 0.9, "bad": 0.6}
    cells = [
        cell(tmp_path, method, right, task, draw=i, majority=majority)
        for task in ("t", "u")
        for i, (method, right) in enumerate(rights.items())
    ]
    told = f"; no method is above the majority class ({100 * majority:.1f})."
    for text in (said([c for c in cells if c.task == "t"]), said(cells)):
        assert text.endswith(told if is_told else "there is no control.")


def test_answers_that_are_all_right_have_no_interval(tmp_path: Path):
    cells = [cell(tmp_path, "good", 1.0), cell(tmp_path, "bad", 0.6, draw=1)]
    assert said(cells).startswith(
        "good scores highest on t, with accuracy 100.0 (no interval: all resamples score alike): "
    )


def test_equal_ones_share_the_first_place_and_are_named_once(tmp_path: Path):
    cells = [cell(tmp_path, m, 0.8, draw=i) for i, m in enumerate("abcd")]
    text = said(cells)
    assert text.startswith("a, b, c and d share the first place on t, with accuracy 80.0 (95%")
    assert "within noise" not in text


def test_many_near_ones_are_counted(tmp_path: Path):
    scores = {"a": 0.8, "b": 0.795, "c": 0.79, "d": 0.785}
    text = said([cell(tmp_path, m, v, draw=i) for i, (m, v) in enumerate(scores.items())])
    assert text.startswith("a scores highest on t")
    assert re.search(r"within noise of b \(79\.5, p = \S+\), c \(79\.0, p = \S+\) and 1 more", text)


def test_a_mean_over_tasks_is_resampled_task_by_task(tmp_path: Path):
    # The same answers on both: if their resamples went together, the interval would be 1.4 times as wide.
    cells = [cell(tmp_path, "good", 0.9, task) for task in ("a", "b")]
    low, high = map(float, re.findall(r"interval ([\d.]+) to ([\d.]+)\)", said(cells))[0])
    wanted = 2 * 1.96 * 100 * np.sqrt(0.9 * 0.1 / N / 2)
    assert said(cells).startswith("good reaches accuracy 90.0 (95% interval ")
    assert "on average over 2 tasks: there is no control." in said(cells)
    assert high - low == pytest.approx(wanted, rel=0.15)


def test_seeds_widen_the_interval_of_a_mean(tmp_path: Path):
    near, far = (
        [
            cell(tmp_path / name, "m", right, task, draw=seed, seed=seed)
            for task in ("a", "b")
            for seed, right in enumerate(rights)
        ]
        for name, rights in (("near", (0.8, 0.8)), ("far", (0.7, 0.9)))
    )
    widths = [
        float(high) - float(low)
        for cells in (near, far)
        for low, high in re.findall(r"interval ([\d.]+) to ([\d.]+)\)", said(cells))
    ]
    assert widths[1] > 2 * widths[0]


def test_differences_of_means_are_tested_on_shared_resamples(tmp_path: Path):
    """A small but steady lead: every error of the best is one of the other's too."""
    best, other = (np.arange(N) >= 400 - 400 * right for right in (0.9, 0.88))
    cells = [
        scored_cell(tmp_path, method, LABELS, np.where(right, LABELS, 1 - LABELS), task=task)
        for task in ("a", "b")
        for method, right in (("best", best), ("other", other))
    ]
    assert "2.0 above other (88.0, p = 0.005)" in said(cells)


def test_the_values_of_a_curve_have_a_mean_here(tmp_path: Path):
    cells = [cell(tmp_path, "good", r, t) for t, r in (("a", 0.9), ("b", 0.7))]
    axis = CurveAxis(label="x", values={"a": 0.1, "b": 0.2})
    config = REPORT.model_copy(update={"x_axis": axis})
    assert said(cells, config).startswith("good reaches accuracy 80.0 (95% interval")


def test_without_predictions_nothing_is_called_better_or_equal(tmp_path: Path):
    cells = [cell(tmp_path, m, r) for m, r in (("good", 0.9), ("close", 0.89))]
    for one in cells:
        (one.folder / PREDICTIONS).unlink()
    assert said(cells) == (
        "good scores highest on t, with accuracy 90.0: 1.0 above close (89.0, not tested); "
        "there is no control."
    )


def test_three_tasks_without_predictions_are_themselves_the_sample(tmp_path: Path):
    cells = [
        cell(tmp_path, method, right + near, task)
        for task, near in (("a", 0.0), ("b", 0.01), ("c", -0.01))
        for method, right in (("good", 0.8), ("close", 0.79 - near), ("far", 0.6 + near / 2))
    ]
    for one in cells:
        (one.folder / PREDICTIONS).unlink()
    found = said(cells)
    assert re.search(r"within noise of close \(\d\d\.\d, p = 0\.\d+ over tasks\)", found)
    assert "far" not in found


def test_methods_on_other_examples_are_not_tested_against_each_other(tmp_path: Path):
    cells = [cell(tmp_path, "good", 0.9), cell(tmp_path, "close", 0.89)]
    path = cells[1].folder / PREDICTIONS
    table = pq.read_table(path)
    moved = table.set_column(1, table.column_names[1], [np.arange(1, N + 1)])
    pq.write_table(moved, path)
    assert "1.0 above close (89.0, not tested)" in said(cells)


def test_a_control_as_good_as_the_best_is_said(tmp_path: Path):
    cells = [cell(tmp_path, "good", 0.52), cell(tmp_path, "chance", 0.5, draw=1)]
    assert re.search(
        r" on t, but within noise of the control, chance \(50\.0, p = \S+\)\.$", said(cells)
    )
    cells = [cell(tmp_path / "b", "good", 0.5), cell(tmp_path / "b", "chance", 0.7, draw=1)]
    assert "20.0 below the control, chance (70.0, p = 0.005)." in said(cells)


def test_metrics_that_differ_have_no_mean_but_a_count(tmp_path: Path):
    cells = [
        cell(tmp_path, method, right, task, draw=i, metric=metric)
        for task, metric in (("a", "accuracy"), ("b", "f1"), ("c", "accuracy"))
        for i, (method, right) in enumerate((("good", 0.9), ("close", 0.89), ("chance", 0.5)))
    ]
    assert said(cells) == (
        "good is best on 3 of 3 tasks, within noise of another on 3 of those, and above every control on 3 "
        "of 3 (there is no mean over them, as their metrics differ: accuracy, f1)."
    )
    none = REPORT.model_copy(update={"averages": "none"})
    assert said([c for c in cells if c.task != "b"], none).endswith(
        "(no mean over them was asked for)."
    )


def test_a_method_that_lacks_a_task_is_left_out_and_said(tmp_path: Path):
    cells = [cell(tmp_path, "all", 0.8, task) for task in ("a", "b")]
    cells.append(cell(tmp_path, "one", 0.9, "a", draw=1))
    assert "on average over 2 tasks (1 more was not run on all of them)" in said(cells)
    assert said(cells).startswith("all reaches")
    apart = [cells[0], replace(cells[1], method="other")]
    assert "(no method was run on all of them)" in said(apart)


def test_baselines_that_are_controls_on_some_tasks_are_not_said_to_be_missing(tmp_path: Path):
    cells = [cell(tmp_path, "all", 0.8, task) for task in ("a", "b")]
    cells += [
        replace(cell(tmp_path, method, 0.5, task, draw=1), role=role)
        for method in ("length", "words")
        for task, role in (("a", "control"), ("b", "baseline"))
    ]
    one = cell(tmp_path, "one", 0.9, "a", draw=2)
    assert "over 2 tasks (2 more are controls on some of them): no method" in said(cells)
    assert said(cells).endswith(": no method is a control on all of them.")
    assert "(1 more was not run on all of them; 1 more is a control on some of them)" in said(
        [*cells[:4], one]
    )
    assert "(those that were run on all of them are controls on some)" in said([*cells[2:], one])
    # Not run on all of them, whatever its roles.
    assert said(cells[:3]).endswith(": no control was run on all of them.")


def test_scores_of_different_metrics_are_not_ranked(tmp_path: Path):
    """As of a pooling and a head on graded pairs, by their defaults; neither is said to be absent."""
    cells = [
        cell(tmp_path, "mean", 0.5, metric="f1"),
        cell(tmp_path, "head", 0.9, draw=1),
        cell(tmp_path, "chance", 0.5, draw=2),
    ]
    assert said(cells) == (
        "Methods on t are scored by different metrics (f1, accuracy), which cannot be compared: none is "
        "called the best."
    )
    more = [*cells, *(cell(tmp_path, m, r, "u", draw=3) for m, r in (("mean", 0.9), ("head", 0.6)))]
    assert said(more) == (
        "On the tasks with one metric (u alone), mean is best on 1 of 1 task, with no control there; t is "
        "left out, as methods there are scored by different metrics (f1, accuracy), which cannot be compared."
    )
    assert "(u and v), mean is best on 2 of 2 tasks" in said(
        [*more, *(replace(c, task="v") for c in more[-2:])]
    )
    assert said([*more[:-1], replace(more[-1], task="v")]).startswith(
        "On the tasks with one metric (u and v), no two methods were run on the same task, so that none is "
        "called the best; t is left out, as "
    )
    # Both metrics of every method can be compared one by one.
    both = [
        cell(tmp_path / "b", m, r, metric=k) for m, r in (("a", 0.9), ("b", 0.8)) for k in ("f1",)
    ]
    assert said(both).startswith("a scores highest on t, with f1 ")


def test_gaps_and_controls_alone_are_said(tmp_path: Path):
    cells = [cell(tmp_path, "good", 0.9), cell(tmp_path, "chance", 0.5)]
    assert said(cells, has_gaps=True).startswith("Of what there is so far: good reaches")
    assert said(cells[1:]).startswith("There are only controls here")


def nearly_alike(folder: Path) -> list[Cell]:
    """All print as 90.0. `steady` errs wherever `best` does and on a few more, `mixed` errs elsewhere."""
    n = 20_000
    labels = two_classes(n)
    rights = {"best": 0.9, "steady": 0.8996, "mixed": 0.8997}
    cells: list[Cell] = []
    for name, right in rights.items():
        order = np.arange(n) if name != "mixed" else np.random.default_rng(0).permutation(n)
        given = np.where(order < round(right * n), labels, 1 - labels)
        cells += [scored_cell(folder, name, labels, given, task=task) for task in ("a", "b")]
    return cells


def test_rows_that_print_alike_share_the_first_place_unless_a_test_tells_them_apart(tmp_path: Path):
    cells = nearly_alike(tmp_path)
    results = read_results(cells)
    table = annotated(tabulate(results), results, REPORT)
    text = finding(table, REPORT)
    assert text.startswith("best and mixed share the first place on average over 2 tasks, with acc")
    assert "level as printed with steady (90.0, p = 0.005)" in text
    marks = {row.method: [p.mark for p in table.printed(row)] for row in table.rows}
    assert marks == {"best": ["best"] * 3, "steady": ["plain"] * 3, "mixed": ["best"] * 3}


def test_rows_that_print_alike_and_cannot_be_tested_do_not_share_the_first_place(tmp_path: Path):
    cells = nearly_alike(tmp_path)
    for one in cells:
        (one.folder / PREDICTIONS).unlink()
    assert said(cells).endswith(
        "on average over 2 tasks, with accuracy 90.0: level as printed with mixed (90.0, not tested); "
        "there is no control."
    )


def by_metric(folder: Path, rights: dict[str, tuple[float | None, ...]]) -> list[Cell]:
    """Methods on tasks whose metrics differ; None where one was not run."""
    return [
        cell(folder, method, right, task, draw=i, metric=metric)
        for i, (method, of) in enumerate(rights.items())
        for task, metric, right in zip("abc", ("accuracy", "f1", "accuracy"), of, strict=False)
        if right is not None
    ]


WINS = {
    "the same on both": (
        {"one": (1.0, 1.0), "other": (1.0, 1.0)},
        "one and other are each best on 2 of 2 tasks, sharing the first place on 2 of those, with no control",
    ),
    "one each": (
        {"one": (0.9, 0.6), "other": (0.6, 0.9), "chance": (0.5, 0.7)},
        "one and other are each best on 1 of 2 tasks: one on a, and above every control on 1 of 2; other on "
        "b, and above every control on 2 of 2",
    ),
    "one each, with no control": (
        {"one": (0.9, 0.6), "other": (0.6, 0.9)},
        "one and other are each best on 1 of 2 tasks, with no control: one on a; other on b",
    ),
    "one each, one within noise": (
        {"one": (0.9, 0.6), "other": (0.6, 0.9), "third": (0.6, 0.89), "chance": (0.5, None)},
        "one and other are each best on 1 of 2 tasks: one on a, and above every control on 1 of 1; other on "
        "b, within noise of another there, and above every control on 1 of 1",
    ),
    "three": (
        {"one": (0.9, 0.6, 0.6), "other": (0.6, 0.9, 0.6), "third": (0.6, 0.6, 0.9)},
        "one, other and third are each best on 1 of 3 tasks, on 3 together, with no control",
    ),
    "alone on one": (
        {"one": (0.9, None, 0.9), "other": (0.6, 0.9, 0.6)},
        "one is best on 2 of 2 tasks, 1 more with one method alone, with no control",
    ),
    "each alone": (
        {"one": (0.9, None), "other": (None, 0.9)},
        "No two methods were run on the same task, so that none is called the best",
    ),
    "one method": (
        {"one": (0.9, 0.9, 0.5), "chance": (0.5, 0.5, 0.6)},
        "one is the only method on 3 tasks, and above every control on 2 of 3",
    ),
}


@pytest.mark.parametrize("case", WINS)
def test_all_that_are_best_on_most_tasks_are_named(tmp_path: Path, case: str):
    rights, expected = WINS[case]
    assert said(by_metric(tmp_path, rights)).startswith(f"{expected} (")


def test_names_with_commas_are_in_quotes(tmp_path: Path):
    cells = [cell(tmp_path, m, 0.8) for m in ("HTP, K 4", "HTP, K 8", "TP")]
    cells += [cell(tmp_path, "CLS and EOS", 0.79, draw=1), cell(tmp_path, "chance", 0.5, draw=2)]
    text = said(cells)
    assert text.startswith("“HTP, K 4”, “HTP, K 8” and TP share the first place on t, with")
    assert ": within noise of “CLS and EOS” (79.0, p" in text
    assert "the control, chance (50.0" in text


def test_tasks_that_are_no_part_of_the_mean_are_named(tmp_path: Path):
    cells = [
        replace(cell(tmp_path, m, right, task), part=part)
        for m, right in (("good", 0.9), ("other", 0.7))
        for task, part in (("STS-B", "tasks"), ("a", "evaluations"), ("b", "evaluations"))
    ]
    config = REPORT.model_copy(update={"averages": "evaluations"})
    assert said(cells, config).startswith(
        "good scores highest on average over 2 tasks (without STS-B), with accuracy 90.0 (95%"
    )
    cells = [c for c in cells if (c.method, c.task) != ("other", "b")]
    assert "over 2 tasks (without STS-B; 1 more was not run on all of them)" in said(cells, config)
