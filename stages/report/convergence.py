"""Notes on fits that may not have been trained to their end, and on solvers that were stopped."""

from collections.abc import Sequence

import numpy as np

from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.entries import some
from permafrost.stages.report.learning import LearningCurve, Run

WAITED = 5
"""Epochs without improvement on dev after which a falling training loss no longer matters."""
SHARE_OF_FALL = 0.05
"""A loss is still falling if its last epoch has more than this share of the whole decrease,"""
SHARE_OF_LOSS = 0.01
"""and more than this share of the loss of its first epoch."""
SHARE_OF_EPOCHS = 0.1
"""A loss has hardly fallen if more than half of its first epoch's is left and these last epochs have more
than `SHARE_OF_FALL` of the whole decrease: it falls about as fast as from the start."""


def ends_at_its_best(run: Run) -> bool:
    """Whether the best epoch on dev is the last one, so that the metric could still rise."""
    evaluated, _ = run.points("dev_metric")
    return bool(run.kept == evaluated[-1] and run.kept_metric < 1)


def still_falls(run: Run) -> bool:
    """Whether the training loss fell markedly in the last epoch, soon after the best epoch on dev."""
    losses = run.train_loss
    if len(losses) < 2 or run.epochs[-1] - run.kept >= WAITED or run.kept_metric >= 1:
        return False
    last, whole = losses[-2] - losses[-1], losses[0] - losses[-1]
    return bool(last > max(SHARE_OF_FALL * whole, SHARE_OF_LOSS * np.abs(losses[0])))


def hardly_fell(run: Run) -> bool:
    """Whether dev has been waited for although little of train had been learnt: as with states of small
    numbers under a rate that is too low for them."""
    losses = run.train_loss
    if run.epochs[-1] - run.kept < WAITED or run.kept_metric >= 1 or losses[-1] <= losses[0] / 2:
        return False
    late = losses[-1 - max(1, int(SHARE_OF_EPOCHS * len(losses)))] - losses[-1]
    whole = losses[0] - losses[-1]
    return bool(whole > SHARE_OF_LOSS * np.abs(losses[0]) and late > SHARE_OF_FALL * whole)


def unfinished_note(
    curves: Sequence[LearningCurve], controls: Sequence[str] = ()
) -> tuple[str, ...]:
    """A note on fits that may have stopped too early, by method, task and seed, and what to change; controls
    are left out."""
    fits: list[str] = []
    for curve in curves:
        if curve.method in controls:
            continue
        last = [r for r in curve.runs if ends_at_its_best(r)]
        others = [r for r in curve.runs if not ends_at_its_best(r)]
        falling = [r for r in others if still_falls(r)]
        hardly = [r for r in others if hardly_fell(r)]
        reasons = [
            f"{why} {_seeds(runs)}"
            for why, runs in (
                ("the last epoch kept by", last),
                ("train loss falling in", falling),
                ("train loss hardly down, and falling, in", hardly),
            )
            if runs
        ]
        if reasons:
            fits.append(f"{curve.method} on {curve.task} ({'; '.join(reasons)})")
    if not fits:
        return ()
    return (
        f"Possibly undertrained: {some(fits)}. Their scores may say more "
        "about the training than about the method. Raise `max_epochs`, or `lr`; a method with `optim` can "
        "also leave `max_epochs` out of it, so that dev decides within `max_steps`, which may be raised.",
    )


def unconverged_note(results: Sequence[CellResult]) -> tuple[str, ...]:
    """A note on solvers that were stopped before they had converged, by method and task."""
    stopped: dict[tuple[str, str], list[int]] = {}
    for r in results:
        if r.metrics.converged is False:
            stopped.setdefault((r.cell.method, r.cell.task), []).append(r.cell.seed)
    if not stopped:
        return ()
    fits = [
        f"{method} on {task} ({'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))})"
        for (method, task), seeds in stopped.items()
    ]
    return (
        f"Solvers that were stopped before they had converged: {some(fits)}. Better "
        "fits may score otherwise. Raise `max_iter` where the method has it, or give smaller values of `c`.",
    )


def _seeds(runs: Sequence[Run]) -> str:
    noun = "seed" if len(runs) == 1 else "seeds"
    named = ", ".join(f"{r.seed} (epoch {r.kept} of {r.epochs[-1]})" for r in runs)
    return f"{noun} {named}"
