"""Standard scores over methods, against scipy, and what the tables and figures show of them."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import zscore

from permafrost.stages.report.across import (
    Across,
    BackboneScores,
    require_groups,
    scores_figure,
    scores_table,
    standard_figure,
    standard_table,
)
from permafrost.stages.report.canvas import drawing
from permafrost.stages.report.palette import extended
from permafrost.storage.errors import InputError

METHODS = ("mean", "max", "GLOT")
TASKS = ("CoLA", "MNLI-m", "MNLI-mm", "RTE", "WNLI")
GROUPS = {"single": [["CoLA"]], "inference": [["MNLI-m", "MNLI-mm"], ["RTE"]]}


def made(sizes: tuple[int | None, ...] = (22_000_000, 7_000_000_000)) -> Across:
    rng = np.random.default_rng(0)
    runs = tuple(
        BackboneScores(f"b{i}", n, {(m, t): float(rng.uniform()) for m in METHODS for t in TASKS})
        for i, n in enumerate(sizes)
    )
    return Across(runs, METHODS, TASKS, dict.fromkeys(TASKS, "accuracy"))


def test_standard_scores_are_those_of_the_population():
    across = made()
    for run in across.runs:
        for task in TASKS:
            values = [run.tests[m, task] for m in METHODS]
            expected = zscore(values, ddof=0)
            found = across.standard_scores(run, task)
            assert list(found) == list(METHODS)
            assert list(found.values()) == pytest.approx(expected.tolist())


def test_two_test_sets_of_one_fit_count_as_one_task():
    across = made()
    run = across.runs[1]
    z = {t: across.standard_scores(run, t)["GLOT"] for t in TASKS}
    found = across.grouped(run, GROUPS)
    assert found["single"]["GLOT"] == pytest.approx(z["CoLA"])
    expected = ((z["MNLI-m"] + z["MNLI-mm"]) / 2 + z["RTE"]) / 2
    assert found["inference"]["GLOT"] == pytest.approx(expected)
    rows = {row[:2]: row[2:] for row in standard_table(across, GROUPS).rows}
    total = (found["single"]["GLOT"] + expected) / 2
    assert rows["b1", "GLOT"][2] == f"{total:+.2f}".replace("-", "−")
    assert set(rows) == {(b, m) for b in ("b0", "b1") for m in METHODS}


def test_a_score_that_rounds_to_zero_has_no_sign():
    across = Across(
        tuple(
            BackboneScores(b, None, {("x", "t"): low, ("y", "t"): 0.5, ("z", "t"): 1 - low})
            for b, low in (("b0", 0.1), ("b1", 0.1 + 1e-9))
        ),
        ("x", "y", "z"),
        ("t",),
        {"t": "accuracy"},
    )
    rows = standard_table(across, {"all": [["t"]]}).rows
    assert {row[1]: row[2] for row in rows} == {"x": "−1.22", "y": "0.00", "z": "+1.22"}


def test_a_task_on_which_all_are_equal_counts_in_no_group():
    across = made()
    tests = across.runs[0].tests | {(m, "RTE"): 0.5271 for m in METHODS}
    run = BackboneScores("b", None, tests)
    assert across.standard_scores(run, "RTE") == {}
    only = across.grouped(run, {"inference": [["MNLI-m"], ["RTE"]], "none": [["RTE"]]})
    assert only == {"inference": across.standard_scores(run, "MNLI-m")}


def test_a_table_has_scores_and_parameters():
    table = scores_table(made((22_000_000, None)))
    assert table.header[:4] == ("backbone", "method", "parameters", "CoLA (accuracy)")
    rows = {row[:2]: row[2:] for row in table.rows}
    expected = 100 * made().runs[0].tests["max", "CoLA"]
    assert rows["b0", "max"][:2] == ("22.0 M", f"{expected:.1f}")
    assert rows["b1", "max"][0] == "–"


def test_figures_draw_the_runs_whose_sizes_are_known():
    across = made((7_000_000_000, 22_000_000, None))
    marks = extended({}, METHODS)
    with drawing():
        scores, standard = scores_figure(across, marks), standard_figure(across, GROUPS, marks)
    assert [a.get_title(loc="left") for a in standard.axes] == ["single", "inference"]
    assert len(scores.axes) == len(TASKS)
    drawn = {tuple(line.get_ydata()) for line in scores.axes[0].lines}
    assert drawn == {
        tuple(100 * across.runs[i].tests[m, "CoLA"] for i in (1, 0)) for m in METHODS
    }, "from the small backbone to the large one"
    assert standard.axes[1].get_xscale() == "log"


def test_figures_name_the_backbones_and_no_labels_touch():
    sizes = (124_646_401, 22_713_216, 33_360_000, 109_482_240, 3_085_938_688, 1_543_714_304)
    across, marks = made(sizes), extended({}, METHODS)
    with drawing():
        for figure, label in (
            (scores_figure(across, marks), "× 100"),
            (standard_figure(across, GROUPS, marks), "standard score"),
        ):
            FigureCanvasAgg(figure).draw()
            (notes,) = [t.get_text() for t in figure.texts if ":" in t.get_text()]
            assert notes.split("; ") == [
                *("22.7 M: b1", "33.4 M: b2", "109.5 M: b3", "124.6 M: b0"),
                *("1.5 G: b5", "3.1 G: b4"),
            ]
            for axes in figure.axes:
                assert axes.get_ylabel() == label
                assert len(axes.get_xticks()) == len(sizes)
                shown = [t for t in axes.get_xticklabels() if t.get_text()]
                assert 3 <= len(shown) < len(sizes)
                boxes = [t.get_window_extent() for t in shown]
                assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_a_figure_has_no_curve_where_nothing_is_known():
    """All methods are equal on the only task of a group; no backbone has a size."""
    made_up = made()
    tests = {(m, "WNLI"): 0.5634 for m in METHODS}
    runs = tuple(
        BackboneScores(run.backbone, n, run.tests | tests)
        for run, n in zip(made_up.runs, (5_000, None), strict=True)
    )
    across = Across(runs, METHODS, TASKS, made_up.metrics)
    marks = extended({}, METHODS)
    with drawing():
        figure = standard_figure(across, {"odd": [["WNLI"]], "single": [["CoLA"]]}, marks)
        unknown = scores_figure(made((None, None)), marks)
    assert [len(axes.lines) for axes in figure.axes] == [0, len(METHODS)]
    assert not [line for axes in unknown.axes for line in axes.lines]


def test_a_group_of_another_task_is_refused():
    with pytest.raises(InputError, match="'single' names the task 'SST-2'; the runs share CoLA"):
        require_groups({"single": [["CoLA"], ["SST-2"]]}, TASKS)
