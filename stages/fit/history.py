"""The history of a fit: losses, rates and dev metrics, and their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from permafrost.stages.metrics.records import EPOCHS

if TYPE_CHECKING:
    from permafrost.stages.fit.trainer import Step, Trainer


@dataclass(frozen=True)
class EpochRecord:
    """One epoch; `train_loss` is the mean over its examples."""

    epoch: int
    train_loss: float
    dev_metric: float


@dataclass(frozen=True)
class StepRecord:
    """One step; steps count from 1 over all epochs."""

    epoch: int
    step: int
    loss: float
    lr: float


def records_of(trainer: Trainer[Any, Any]) -> tuple[list[EpochRecord], list[StepRecord]]:
    """The epochs and steps that a trainer has recorded."""
    history = [EpochRecord(e.epoch, e.losses[0], e.dev[0]) for e in trainer.history if e.dev]
    log = [StepRecord(s.epoch, s.step, s.loss, s.lr) for s in trainer.log]
    return history, log


def history_table(history: Sequence[EpochRecord]) -> pa.Table:
    """One row per epoch."""
    return pa.table(
        {
            "epoch": [r.epoch for r in history],
            "train_loss": [r.train_loss for r in history],
            "dev_metric": [r.dev_metric for r in history],
        },
        schema=EPOCHS,
    )


def log_csv(log: Sequence[StepRecord], history: Sequence[EpochRecord]) -> str:
    """One line per step; the dev metric is in the last line of each epoch."""
    metrics = {r.epoch: r.dev_metric for r in history}
    last = {r.epoch: r.step for r in log}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["epoch", "step", "loss", "lr", "dev_metric"])
    for r in log:
        dev = repr(metrics[r.epoch]) if last[r.epoch] == r.step else ""
        lines.writerow([r.epoch, r.step, repr(r.loss), repr(r.lr), dev])
    return text.getvalue()


def step_csv(log: Sequence[Step], loss_name: str, dev_name: str, dev: Mapping[int, float]) -> str:
    """One line per step; the value on dev after an epoch is in the epoch's last line."""
    last = {step.epoch: step.step for step in log}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["epoch", "step", loss_name, dev_name])
    for s in log:
        value = dev.get(s.epoch) if last[s.epoch] == s.step else None
        lines.writerow([s.epoch, s.step, repr(s.loss), "" if value is None else repr(value)])
    return text.getvalue()
