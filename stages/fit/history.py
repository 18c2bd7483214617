"""What a fit has found so far: losses, rates and dev metrics, and when a candidate is over."""

import csv
import io
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from torch import Tensor

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.optim import Limits


@dataclass(frozen=True)
class EpochRecord:
    """One candidate after one epoch."""

    candidate: int
    epoch: int
    train_loss: float
    dev_metric: float


@dataclass(frozen=True)
class StepRecord:
    """One step of one candidate; steps count from 1 over all its epochs."""

    candidate: int
    epoch: int
    step: int
    loss: float
    lr: float


@dataclass
class Trace:
    """Everything that a fit has recorded, in order."""

    history: list[EpochRecord] = field(default_factory=list[EpochRecord])
    log: list[StepRecord] = field(default_factory=list[StepRecord])
    best: tuple[EpochRecord, dict[str, Tensor]] | None = None
    """The best epoch on dev and the parameters after it; ties go to the first."""

    def epochs(self, candidate: int) -> list[EpochRecord]:
        """The epochs of a candidate."""
        return self.history[self._first(candidate) : self._first(candidate + 1)]

    def _first(self, candidate: int) -> int:
        return bisect_left(self.history, candidate, key=lambda r: r.candidate)

    def is_over(self, candidate: int, config: FitConfig, limits: Limits) -> bool:
        """Whether a candidate gets no further epoch."""
        mine = [r.dev_metric for r in self.epochs(candidate)]
        if not mine:
            return False
        patient = config.grid_patience
        since_best = len(mine) - 1 - mine.index(max(mine))
        earlier = [r.dev_metric for r in self.history[: self._first(candidate)]]
        return (
            len(mine) >= limits.n_epochs
            or (limits.patience is not None and since_best >= limits.patience)
            or (
                patient is not None
                and len(mine) >= patient
                and bool(earlier)
                and max(mine) <= max(earlier)
            )
        )


def history_table(history: Sequence[EpochRecord], candidates: Sequence[FitConfig]) -> pa.Table:
    """One row per candidate and epoch, the candidates written out."""
    written = [candidate.model_dump_json() for candidate in candidates]
    return pa.table(
        {
            "candidate": pa.array([r.candidate for r in history], pa.int64()),
            "candidate_json": pa.array([written[r.candidate] for r in history], pa.string()),
            "epoch": pa.array([r.epoch for r in history], pa.int64()),
            "train_loss": pa.array([r.train_loss for r in history], pa.float64()),
            "dev_metric": pa.array([r.dev_metric for r in history], pa.float64()),
        }
    )


def log_csv(log: Sequence[StepRecord], history: Sequence[EpochRecord]) -> str:
    """One line per step; the dev metric stands in the last line of each epoch."""
    metrics = {(r.candidate, r.epoch): r.dev_metric for r in history}
    last = {(r.candidate, r.epoch): r.step for r in log}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["candidate", "epoch", "step", "loss", "lr", "dev_metric"])
    for r in log:
        at = (r.candidate, r.epoch)
        dev = repr(metrics[at]) if last[at] == r.step else ""
        lines.writerow([r.candidate, r.epoch, r.step, repr(r.loss), repr(r.lr), dev])
    return text.getvalue()
