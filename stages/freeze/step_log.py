"""What training made small, step by step, as a file that a spreadsheet or a plot reads."""

import csv
import io
from collections.abc import Mapping, Sequence

from permafrost.stages.fit.trainer import Step


def step_csv(log: Sequence[Step], loss_name: str, dev_name: str, dev: Mapping[int, float]) -> str:
    """One line per step; what was found on dev after an epoch stands in the epoch's last line."""
    last = {step.epoch: step.step for step in log}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["epoch", "step", loss_name, dev_name])
    for s in log:
        found = dev.get(s.epoch) if last[s.epoch] == s.step else None
        lines.writerow([s.epoch, s.step, repr(s.loss), "" if found is None else repr(found)])
    return text.getvalue()
