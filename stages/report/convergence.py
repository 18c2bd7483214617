"""Fits that may not have been trained to their end: a warning that names them.

Dev decides when training is over. It has not where the epoch it likes best is the last there was, or where
the loss on train still falls markedly and dev has hardly been waited for. A loss that falls while dev has
long been getting no better is no sign of it.
"""

from collections.abc import Sequence

import numpy as np

from permafrost.stages.report.history import LearningCurve, Run

WAITED = 5
"""Epochs without a better one on dev after which the loss on train no longer matters."""
SHARE_OF_FALL = 0.05
"""A loss still falls if its last epoch has more than this share of its whole fall,"""
SHARE_OF_LOSS = 0.01
"""and more than this share of the loss of its first epoch."""
_MOST_NAMED = 6


def ends_at_its_best(run: Run) -> bool:
    """The epoch that was kept is the last with a metric on dev, which could still rise."""
    evaluated, _ = run.points("dev_metric")
    return bool(run.kept == evaluated[-1] and run.kept_metric < 1)


def still_falls(run: Run) -> bool:
    """The loss on train fell markedly in the last epoch, and dev has hardly been waited for."""
    losses = run.train_loss
    if len(losses) < 2 or run.epochs[-1] - run.kept >= WAITED or run.kept_metric >= 1:
        return False
    last, whole = losses[-2] - losses[-1], losses[0] - losses[-1]
    return bool(last > max(SHARE_OF_FALL * whole, SHARE_OF_LOSS * np.abs(losses[0])))


def unfinished_note(
    curves: Sequence[LearningCurve], controls: Sequence[str] = ()
) -> tuple[str, ...]:
    """Which fits those are, by method, task and seed, and what to change; controls are left out."""
    found: list[str] = []
    for curve in curves:
        if curve.method in controls:
            continue
        last = [r for r in curve.runs if ends_at_its_best(r)]
        falling = [r for r in curve.runs if not ends_at_its_best(r) and still_falls(r)]
        reasons = [
            f"{why} {_seeds(runs)}"
            for why, runs in (("the last epoch kept by", last), ("train loss falling in", falling))
            if runs
        ]
        if reasons:
            found.append(f"{curve.method} on {curve.task} ({'; '.join(reasons)})")
    if not found:
        return ()
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"Perhaps not trained to the end: {', '.join(found[:_MOST_NAMED])}{more}. Their scores may say more "
        "of the training than of the method. Raise `max_epochs`, or leave it out of `optim` so that dev "
        "decides; where it is out, raise `max_steps` or `lr`.",
    )


def _seeds(runs: Sequence[Run]) -> str:
    noun = "seed" if len(runs) == 1 else "seeds"
    named = ", ".join(f"{r.seed} (epoch {r.kept} of {r.epochs[-1]})" for r in runs)
    return f"{noun} {named}"
