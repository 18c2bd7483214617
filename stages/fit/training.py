"""Train heads on stored features and keep the best (candidate, epoch) on dev.

Source: GLOT, section 4.1 (Adam, constant rate, argmax; the losses are those of `models`). We differ in
how long is trained (`optim`), and in the selection: the released code reports the best epoch of the very set
it selects on; here dev selects and test is never read.

A fit depends on its config and data alone.
"""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from permafrost.stages.fit.checkpoint import Checkpoint, checkpoint_of
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.history import EpochRecord, StepRecord, records_of
from permafrost.stages.fit.models import TaskFacts
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.sources import (
    Source,
    pooled,
    source_of,
    source_with_negatives,
    with_reader,
)
from permafrost.stages.fit.splits import (
    Splits,
    adds_negatives,
    require_fitting,
    require_negatives,
    splits,
)
from permafrost.stages.fit.trained import FitResult
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.heads.head import AlreadyPooled, HeadConfig
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader


def fit(
    config: FitConfig,
    data: FitData,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 0.0,
) -> FitResult:
    """Train every candidate, evaluate dev after every epoch, keep the best (candidate, epoch).

    Ties go to the first candidate and the earliest epoch. Poolings without parameters are applied
    once per layer and what stands on them is trained on the vectors, which gives the same result.

    Args:
        config: one head or a grid.
        data: features and examples; test is not read.
        progress: told about every step; the steps that a candidate is spared count as done.
        device: where to compute, for example "cuda"; not part of the config because it may not
            change the result beyond rounding.
        checkpoint: file that is written after an epoch and removed at the end. If it is there, from a
            killed fit of the same config and data, that one is continued, with the result it would
            have had. Another fit needs another file, and so does other code.
        checkpoint_every_s: seconds between two writes, at least.

    Raises:
        InputError: no train or dev examples, nothing to learn, a loss or metric of another task, unknown
            grid field, array not given.
        PermafrostError: the loss or an answer is not finite.
        CorruptDataError: the checkpoint is damaged.
    """
    candidates: list[FitConfig] = []
    parts: dict[tuple[int, str], Splits] = {}
    n_steps: list[int] = []  # of each candidate, at most
    for candidate in config.candidates():
        data.reader(candidate.layer)
        require_fitting(candidate, data)
        kind = (candidate.seed, candidate.labels)
        if kind not in parts:
            parts[kind] = splits(*kind, data)
        require_negatives(candidate, parts[kind][0])
        n_examples = len(parts[kind][0])
        optim = candidate.optim.for_examples(n_examples)
        candidates.append(candidate.model_copy(update={"optim": optim}))
        n_steps.append(-(-n_examples // optim.batch_size) * optim.limits(n_examples).n_epochs)
    file = None if checkpoint is None else checkpoint_of(checkpoint, config, data)
    saved = None if file is None else file.load()
    found = _Found() if saved is None else _Found.loaded(saved)
    unfinished = None if saved is None else saved["trainer"]
    keeper = _Keeper(file, found, checkpoint_every_s)
    sources = _Sources(data, parts, torch.device(device))
    facts = _facts(data, next(iter(parts.values()))[0])
    progress.start(f"fit {config.head.kind}", sum(n_steps), "steps")
    try:
        progress.advance(sum(n_steps[: found.n_candidates]))  # those that ended before a kill
        for candidate in candidates[found.n_candidates :]:
            trained, train, dev = sources.of(candidate)
            trainee = HeadTrainee(trained, facts, train, dev, sources.device)
            rival = None if found.best is None else found.best[0]
            is_hopeless = partial(ends_early, config.grid_patience, rival)
            trainer = Trainer(trainee, trainee.plan, is_hopeless)
            if unfinished is not None:
                trainer.load_state_dict(unfinished)
                unfinished = None
            trainer.run(progress, lambda trainer=trainer: keeper.after_epoch(trainer))
            found.add(trainer)
    finally:
        progress.finish()
    assert found.best is not None, "there is at least one candidate and one epoch"
    best, state = found.best
    width = data.reader(candidates[best.candidate].layer).width
    if file is not None:
        file.remove()
    return FitResult(
        config, tuple(candidates), best, tuple(found.history), tuple(found.log), width, facts, state
    )


@dataclass
class _Found:
    """What the candidates so far have come to."""

    n_candidates: int = 0
    history: list[EpochRecord] = field(default_factory=list[EpochRecord])
    log: list[StepRecord] = field(default_factory=list[StepRecord])
    best: tuple[EpochRecord, dict[str, Tensor]] | None = None
    """The best epoch on dev and the parameters after it; ties go to the first."""

    @classmethod
    def loaded(cls, saved: dict[str, Any]) -> "_Found":
        """As `_Keeper` wrote it."""
        best = saved["best"]
        return cls(
            saved["n_candidates"],
            [EpochRecord(*r) for r in saved["history"]],
            [StepRecord(*r) for r in saved["log"]],
            None if best is None else (EpochRecord(*best[0]), best[1]),
        )

    def add(self, trainer: Trainer[Any, Any]) -> None:
        """A candidate has ended."""
        history, log = records_of(self.n_candidates, trainer)
        self.history += history
        self.log += log
        best = history[trainer.best[0].epoch - 1]
        if self.best is None or best.dev_metric > self.best[0].dev_metric:
            self.best = best, trainer.kept
        self.n_candidates += 1


def ends_early(patience: int | None, best: EpochRecord | None, scores: Sequence[float]) -> bool:
    """Whether a candidate with these scores on dev, one per epoch, has not beaten the best before."""
    return (
        patience is not None
        and best is not None
        and len(scores) >= patience
        and max(scores) <= best.dev_metric
    )


@dataclass
class _Keeper:
    """Writes the checkpoint, not more often than every so many seconds."""

    file: Checkpoint | None
    found: _Found
    every_s: float
    written: float = field(default_factory=time.monotonic)

    def after_epoch(self, trainer: Trainer[Any, Any]) -> None:
        """The current candidate has ended an epoch."""
        if self.file is None or time.monotonic() - self.written < self.every_s:
            return
        found = self.found
        self.file.save(
            {
                "n_candidates": found.n_candidates,
                "history": [astuple(r) for r in found.history],
                "log": [astuple(r) for r in found.log],
                "best": None if found.best is None else (astuple(found.best[0]), found.best[1]),
                "trainer": trainer.state_dict(),
            }
        )
        self.written = time.monotonic()


def _facts(data: FitData, train: Examples) -> TaskFacts:
    if data.task == "similarity":
        return TaskFacts(data.task, (), (float(train.labels.min()), float(train.labels.max())))
    return TaskFacts(data.task, data.label_names)


@dataclass(frozen=True)
class _Sources:
    """Train and dev as candidates see them."""

    data: FitData
    splits: dict[tuple[int, str], Splits]
    """By seed and labels."""
    device: torch.device
    pools: dict[tuple[HeadConfig, str, int], FeatureReader] = field(default_factory=dict)
    """Pooled texts by head without parameters, layer and split."""

    def of(self, candidate: FitConfig) -> tuple[FitConfig, Source, Source]:
        """The candidate as it is trained, with its train and dev."""
        reader = self.data.reader(candidate.layer)
        examples, dev_examples = self.splits[candidate.seed, candidate.labels]
        source = source_with_negatives if adds_negatives(candidate) else source_of
        train, dev = source(examples, reader), source_of(dev_examples, reader)
        if candidate.head.trains:
            return candidate, train, dev
        trained = candidate.model_copy(update={"head": AlreadyPooled()})
        return trained, self._pooled(candidate, 0, train), self._pooled(candidate, 1, dev)

    def _pooled(self, candidate: FitConfig, split: int, source: Source) -> Source:
        key = (candidate.head, candidate.layer, split)
        if key not in self.pools:
            self.pools[key] = pooled(
                candidate.head, source.reader, candidate.optim.batch_size, self.device
            )
        return with_reader(source, self.pools[key])
