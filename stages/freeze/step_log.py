"""What training made small, step by step, as a file that a spreadsheet or a plot reads."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepLoss:
    """One step; epochs and steps count from 1, steps over all epochs."""

    epoch: int
    step: int
    loss: float


def steps_from(log: Sequence[StepLoss], epoch: int, losses: Sequence[float]) -> list[StepLoss]:
    """The steps of one epoch, counted on from those before it."""
    return [StepLoss(epoch, len(log) + i, loss) for i, loss in enumerate(losses, start=1)]


def step_csv(
    log: Sequence[StepLoss], loss_name: str, dev_name: str, dev: Mapping[int, float]
) -> str:
    """One line per step; what was found on dev after an epoch stands in the epoch's last line."""
    last = {step.epoch: step.step for step in log}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["epoch", "step", loss_name, dev_name])
    for s in log:
        found = dev.get(s.epoch) if last[s.epoch] == s.step else None
        lines.writerow([s.epoch, s.step, repr(s.loss), "" if found is None else repr(found)])
    return text.getvalue()
