"""Means over tasks that share fits: a lucky seed is lucky on all of them, and is no difference of methods."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.metrics.bootstrap import BootstrapConfig, Estimate, estimate, interval
from permafrost.stages.metrics.predictions import PREDICTIONS
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.entries import entry
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.paired import mean_estimate, paired_difference
from permafrost.stages.report.standing import SeedScore, Standing
from permafrost.stages.report.tables import Column, ResultsTable, Row, intervals_table, tabulate
from tests.stages.report.scored_cells import answers, scored_cell, two_classes

CONFIG = BootstrapConfig(n_resamples=200)
N_TASKS, N_TEST, N_SEEDS, N_DRAWS = 7, 1000, 3, 300
EXAMPLE_SD = (0.8 * 0.2 / N_TEST) ** 0.5
NAMES = "one", "other"


def equal_methods(rng: np.random.Generator, of_fit: float, of_task: float, *, kept: bool):
    """Two methods that are equally good on the average; of the spread over seeds, a part is of the fit and
    a part of the task."""
    part = "evaluations" if of_fit else "tasks"
    columns = tuple(
        Column(f"t{i}", "accuracy", f"t{i}", None, N_TEST, part=part) for i in range(N_TASKS)
    )
    fit_MK = rng.normal(0, of_fit, (2, N_SEEDS))
    scores_TMK = 0.8 + fit_MK + rng.normal(0, of_task, (N_TASKS, 2, N_SEEDS))
    scores_TMK = scores_TMK + rng.normal(0, EXAMPLE_SD, (N_TASKS, 2, 1))
    draws_TMKB = scores_TMK[..., None] + rng.normal(
        0, EXAMPLE_SD, (N_TASKS, 2, 1, CONFIG.n_resamples)
    )
    standings: list[Standing] = []
    for scores_MK, draws_MKB in zip(scores_TMK, draws_TMKB, strict=True):
        of = {
            name: estimate("accuracy", k, kb, None, CONFIG.level)
            for name, k, kb in zip(NAMES, scores_MK, draws_MKB, strict=True)
        }
        estimates: Sequence[Mapping[str, Estimate]] = (of,) if kept else ()
        seeds = {
            name: {k: SeedScore(float(v), None) for k, v in enumerate(values)}
            for name, values in zip(NAMES, scores_MK, strict=True)
        }
        standings.append(Standing(estimates=tuple(estimates), seeds=seeds))
    rows = tuple(
        Row(
            name,
            "method",
            tuple(entry(list(k)) for k in scores_TMK[:, i]),
            tuple(range(N_SEEDS)),
            (1, 1),
        )
        for i, name in enumerate(NAMES)
    )
    return ResultsTable(columns, rows, tuple(standings))


@pytest.mark.few(1)
@pytest.mark.parametrize("kept", [True, False], ids=["over examples", "over tasks"])
@pytest.mark.parametrize(("of_fit", "of_task"), [(0.02, 0.005), (0.0, 0.02)], ids=["shared", "own"])
def test_equal_methods_are_rarely_called_different(of_fit: float, of_task: float, kept: bool):
    rng = np.random.default_rng(1)
    n_different = 0
    for _ in range(N_DRAWS):
        table = equal_methods(rng, of_fit, of_task, kept=kept)
        found = paired_difference(table, range(N_TASKS), *table.rows, CONFIG)
        assert found is not None
        assert found.over == ("examples" if kept else "tasks")
        n_different += found.p < 0.05
    # With .05, 300 draws give more than 27 in one case of a thousand.
    assert n_different <= 27


def test_the_interval_of_a_mean_has_the_spread_of_its_seeds():
    """Scores on all tasks move together, so that their mean varies as much as one of them."""
    table = equal_methods(np.random.default_rng(2), 0.02, 0.0, kept=True)
    of_mean = mean_estimate(table, range(N_TASKS), table.rows[0], CONFIG)
    assert of_mean is not None
    of_one = table.standings[0].estimates[0]["one"]
    assert of_mean.error == pytest.approx(of_one.error)
    assert of_mean.freedom == N_SEEDS - 1
    found = interval(of_mean, CONFIG.level, CONFIG.seed)
    assert found.half_width > 2 * of_one.error


def test_gaps_that_are_alike_on_all_tasks_are_no_difference_where_seeds_are_further_apart():
    table = equal_methods(np.random.default_rng(3), 0.05, 0.0, kept=False)
    rows = tuple(
        replace(row, entries=tuple(entry([0.8 + gap, 0.7 + gap]) for _ in row.entries))
        for row, gap in zip(table.rows, (0.01, 0.0), strict=True)
    )
    seeds = {
        name: {0: SeedScore(0.8 + gap, None), 1: SeedScore(0.7 + gap, None)}
        for name, gap in zip(NAMES, (0.01, 0.0), strict=True)
    }
    standings = tuple(replace(s, seeds=seeds) for s in table.standings)
    table = replace(table, rows=rows, standings=standings)
    found = paired_difference(table, range(N_TASKS), *rows, CONFIG)
    assert found is not None
    assert found.low < 0 < found.high
    assert found.p > 0.5


@pytest.mark.parametrize("kept", [True, False], ids=["over examples", "over tasks"])
def test_seeds_of_a_task_on_which_methods_are_the_same_fits_do_not_matter(kept: bool):
    """Not in the spread of the seeds that the others share either."""
    table = equal_methods(np.random.default_rng(5), 0.02, 0.0, kept=kept)
    rows = tuple(replace(row, entries=(entry([0.8]), *row.entries[1:])) for row in table.rows)
    found = []
    for gap in (0.0, 0.2):
        scores_K = np.array([0.8 - gap, 0.8, 0.8 + gap])
        seeds = {k: SeedScore(float(v), f"fit/{k}") for k, v in enumerate(scores_K)}
        same = estimate(
            "accuracy", scores_K, np.full((N_SEEDS, CONFIG.n_resamples), 0.8), None, CONFIG.level
        )
        first = replace(
            table.standings[0],
            estimates=(dict.fromkeys(NAMES, same),) if kept else (),
            seeds=dict.fromkeys(NAMES, seeds),
        )
        changed = replace(table, rows=rows, standings=(first, *table.standings[1:]))
        found.append(paired_difference(changed, range(N_TASKS), *rows, CONFIG))
    assert found[0] is not None
    assert found[0].low < found[0].value < found[0].high
    assert found[0] == found[1]


def test_seeds_that_no_two_tasks_have_in_common_are_taken_to_move_all():
    table = equal_methods(np.random.default_rng(4), 0.02, 0.0, kept=True)
    apart = tuple(
        replace(
            s, seeds={name: {10 * i + k: v for k, v in of.items()} for name, of in s.seeds.items()}
        )
        for i, s in enumerate(table.standings)
    )
    together = mean_estimate(table, range(N_TASKS), table.rows[0], CONFIG)
    alone = mean_estimate(replace(table, standings=apart), range(N_TASKS), table.rows[0], CONFIG)
    assert together is not None
    assert alone is not None
    assert alone.error == pytest.approx(together.error)


def test_test_sets_of_one_fit_share_its_seeds_and_other_tasks_do_not(tmp_path: Path):
    """The same scores on two tasks, whose fits are one or two."""
    labels = two_classes(400)
    errors: list[float] = []
    for name, fits in (("one", ("f", "f")), ("two", ("f", "g"))):
        cells = [
            replace(
                scored_cell(
                    tmp_path / name, "m", labels, answers(right, labels, 0), task=task, seed=seed
                ),
                fit=f"{fit}/{seed}",
            )
            for task, fit in zip("ab", fits, strict=True)
            for seed, right in enumerate((0.7, 0.8, 0.9))
        ]
        results = read_results(cells)
        table = annotated(tabulate(results), results, ReportConfig(title="t", bootstrap=CONFIG))
        found = mean_estimate(table, (0, 1), table.rows[0], CONFIG)
        assert found is not None
        errors.append(found.error)
    assert errors[0] == pytest.approx(0.1 / 3**0.5)
    assert errors[1] == pytest.approx(0.1 / 3**0.5 / 2**0.5)


def test_seeds_are_said_to_be_drawn_only_where_some_differ(tmp_path: Path):
    """A method with parameters and one seed has none to draw."""
    labels = two_classes(400)
    for name, n_seeds, is_said in (("one", 1, False), ("two", 2, True)):
        cells = [
            scored_cell(
                tmp_path / name, method, labels, answers(right + seed / 50, labels, 0), seed=seed
            )
            for method, right in (("a", 0.8), ("b", 0.7))
            for seed in range(n_seeds)
        ]
        results = read_results(cells)
        table = annotated(tabulate(results), results, ReportConfig(title="t", bootstrap=CONFIG))
        assert any("other seeds drawn" in note for note in table.notes) == is_said
        assert ("and seeds" in intervals_table(table, 0.95).title) == is_said


def test_draws_of_training_rows_are_said_to_be_left_out_of_classifications(tmp_path: Path):
    labels = two_classes(400)
    cells = [
        replace(
            scored_cell(tmp_path, method, labels, answers(right, labels, 0), task=task),
            part=part,
            category=category,
        )
        for method, right in (("a", 0.8), ("b", 0.7))
        for task, part, category in (
            ("Banking", "evaluations", "Classification"),
            ("STS", "evaluations", "STS"),
            ("own", "tasks", "Classification"),
        )
    ]
    results = read_results(cells)
    table = annotated(tabulate(results), results, ReportConfig(title="t", bootstrap=CONFIG))
    (note,) = [note for note in table.notes if "draws of training rows" in note]
    assert note.startswith("Intervals and tests on Banking are for the draws ")


@pytest.mark.parametrize("n_seeds", [1, 2])
def test_few_seeds_of_a_method_that_was_trained_for_an_evaluation_are_noted(
    tmp_path: Path, n_seeds: int
):
    """It has no loss there, and clusterings have no predictions."""
    labels = two_classes(400)
    cells = [
        replace(
            scored_cell(
                tmp_path, method, labels, answers(0.8, labels, seed), task=task, seed=seed, **more
            ),
            part="evaluations",
        )
        for method, of, more in (
            ("head", n_seeds, {"texts_in_train": {"text": {"n_texts": 4, "n_in_train": 0}}}),
            ("mean", 1, {}),
        )
        for task in "abc"
        for seed in range(of)
    ]
    for one in cells:
        (one.folder / PREDICTIONS).unlink()
    results = read_results(cells)
    table = annotated(tabulate(results), results, ReportConfig(title="t", bootstrap=CONFIG))
    start = "Only one seed of head: " if n_seeds == 1 else "2 seeds are few: "
    assert [note for note in table.notes if note.startswith(start)]
