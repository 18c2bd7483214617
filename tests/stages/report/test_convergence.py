"""Fits that may not have been trained to their end are named, and others are not."""

from pathlib import Path

import numpy as np
import pytest

from permafrost.stages.report.cells import read_results
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.convergence import (
    ends_at_its_best,
    hardly_fell,
    still_falls,
    unconverged_note,
    unfinished_note,
)
from permafrost.stages.report.learning import LearningCurve, Run
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.tables import tabulate
from tests.stages.report.scored_cells import scored_cell, two_classes


def run(loss: list[float], dev: list[float], seed: int = 0) -> Run:
    values = np.array(dev, np.float64)
    return Run(
        seed=seed,
        epochs=np.arange(1, len(loss) + 1),
        train_loss=np.array(loss, np.float64),
        dev_metric=values,
        kept=int(np.nanargmax(values)) + 1,
        n_candidates=1,
        n_epochs=len(loss),
    )


FLAT = [1.0, 0.5, 0.3, 0.25, 0.24, 0.235, 0.232]


@pytest.mark.parametrize(
    ("dev", "is_last"),
    [
        ([0.3, 0.4], True),
        ([0.4], True),
        ([0.4, 0.3], False),
        ([0.4, 0.4], False),  # of equal ones the earliest is kept
        ([0.9, 1.0], False),  # dev cannot rise
        ([np.nan, 0.4, np.nan, 0.5, np.nan], True),  # the last that was evaluated
        ([np.nan, 0.5, np.nan, 0.4, np.nan], False),
    ],
)
def test_an_epoch_that_is_kept_and_the_last_is_noticed(dev, is_last):
    assert ends_at_its_best(run([1.0] * len(dev), dev)) is is_last


@pytest.mark.parametrize(
    ("loss", "dev", "falls"),
    [
        ([1.65, 1.58], [0.4, 0.3], True),  # GLOT's two epochs on 600 texts
        (FLAT, [0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.6], False),
        ([1.0, 0.8, 0.6, 0.4], [0.5, 0.6, 0.7, 0.6], True),
        # Dev has been getting no better for five epochs: it falls because train is learnt by heart.
        ([1.0, 0.9, 0.8, 0.7, 0.6, 0.5], [0.7, 0.6, 0.6, 0.6, 0.6, 0.6], False),
        ([0.6931, 0.6931, 0.6930], [0.5, 0.5, 0.5], False),  # nothing falls
        ([1.0, 0.5, 0.6], [0.5, 0.6, 0.5], False),
        ([1.0], [0.5], False),
    ],
)
def test_a_loss_that_still_falls_is_noticed_unless_dev_has_been_waited_for(loss, dev, falls):
    assert still_falls(run(loss, dev)) is falls


LINE = np.linspace(0.70, 0.60, 68).tolist()
EARLY = [0.3, 0.5, *[0.4] * 66]


@pytest.mark.parametrize(
    ("loss", "dev", "hardly"),
    [
        (LINE, EARLY, True),  # a mean of small numbers under the default rate
        (np.linspace(0.70, 0.0, 68).tolist(), EARLY, False),  # train is learnt by heart
        ((0.6 + 0.1 * np.exp(-np.arange(68) / 10)).tolist(), EARLY, False),  # it has converged
        (np.linspace(0.7, 0.699, 68).tolist(), EARLY, False),  # nothing falls
        (LINE, [0.3, 1.0, *[0.9] * 66], False),  # dev cannot rise
        (LINE[::-1], EARLY, False),
        ([0.7], [0.5], False),
    ],
)
def test_a_fit_that_dev_ended_before_it_had_learnt_much_is_noticed(loss, dev, hardly):
    assert hardly_fell(run(loss, dev)) is hardly


def test_the_note_names_method_task_seeds_and_epochs_and_leaves_controls_out():
    done = run(FLAT, [0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.6])
    curves = [
        LearningCurve("GLOT", "t", "accuracy", "ce", (run([2, 1], [0.3, 0.4], 0), done)),
        LearningCurve(
            "mean", "t", "accuracy", "ce", tuple(run([2, 1], [0.4, 0.3], s) for s in (0, 2))
        ),
        LearningCurve("max", "t", "accuracy", "ce", (done,)),
        LearningCurve("GLOT, shuffled", "t", "accuracy", "ce", (run([2, 1], [0.3, 0.4]),)),
    ]
    (note,) = unfinished_note(curves, ["GLOT, shuffled"])
    assert note.startswith(
        "Possibly undertrained: GLOT on t (the last epoch kept by seed 0 (epoch 2 of 2)), mean on t "
        "(train loss falling in seeds 0 (epoch 1 of 2), 2 (epoch 1 of 2)). "
    )
    # `kind: layers` has `max_epochs` and `lr` of its own; other kinds have them in `optim`.
    assert (
        "Raise `max_epochs`, or `lr`; a method with `optim` can also leave `max_epochs` out" in note
    )
    assert unfinished_note(curves[2:3]) == ()
    early = [LearningCurve("mean", "t", "accuracy", "ce", (run(LINE, EARLY), done))]
    (note,) = unfinished_note(early)
    assert "mean on t (train loss hardly down, and falling, in seed 0 (epoch 2 of 68))" in note
    many = [LearningCurve(f"m{i}", "t", "accuracy", "ce", curves[0].runs) for i in range(9)]
    assert " and 3 more. " in unfinished_note(many)[0]


def test_solvers_that_were_stopped_are_noted_with_their_seeds(tmp_path: Path):
    labels = two_classes(40)
    cells = [
        scored_cell(
            tmp_path, method, labels, labels, task=task, seed=seed, converged=converged, role=role
        )
        for method, role, stopped in (("linear", "method", True), ("length", "control", False))
        for task in ("a", "b")
        for seed in (0, 1)
        for converged in [not (stopped and task == "a") and (method, task) != ("length", "b")]
    ]
    cells += [scored_cell(tmp_path, "mean", labels, labels, task="a")]
    (note,) = unconverged_note(read_results(cells))
    assert note.startswith(
        "Solvers that were stopped before they had converged: linear on a (seeds 0, 1), length on b "
        "(seeds 0, 1). "
    )
    assert unconverged_note(read_results(cells[-1:])) == ()
    results = read_results(cells)
    assert note in annotated(tabulate(results), results, ReportConfig(title="t")).notes
