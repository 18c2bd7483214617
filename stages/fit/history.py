"""What a fit has found: losses, rates and dev metrics of its candidates, and the files of them."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.metrics.records import CANDIDATE_EPOCHS


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


def records_of(
    number: int, trainer: Trainer[Any, Any]
) -> tuple[list[EpochRecord], list[StepRecord]]:
    """What the trainer of a candidate has recorded."""
    history = [
        EpochRecord(number, e.epoch, e.losses[0], e.dev[0]) for e in trainer.history if e.dev
    ]
    log = [StepRecord(number, s.epoch, s.step, s.loss, s.lr) for s in trainer.log]
    return history, log


def history_table(history: Sequence[EpochRecord], candidates: Sequence[FitConfig]) -> pa.Table:
    """One row per candidate and epoch, the candidates written out."""
    written = [candidate.model_dump_json() for candidate in candidates]
    return pa.table(
        {
            "candidate": [r.candidate for r in history],
            "candidate_json": [written[r.candidate] for r in history],
            "epoch": [r.epoch for r in history],
            "train_loss": [r.train_loss for r in history],
            "dev_metric": [r.dev_metric for r in history],
        },
        schema=CANDIDATE_EPOCHS,
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
