"""Train heads on stored features and keep the best (candidate, epoch) on dev.

Source: GLOT, section 4.1 (Adam, constant rate, argmax; the losses are those of `models`). We differ in
how long is trained (`optim`), and in the selection: the released code reports the best epoch of the very set
it selects on; here dev selects and test is never read.

A fit depends on its config and data alone.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from permafrost.stages.fit.checkpoint import Saved, checkpoint_of
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.history import EpochRecord, StepRecord, Trace
from permafrost.stages.fit.metrics import evaluate
from permafrost.stages.fit.models import TaskFacts
from permafrost.stages.fit.optim import Limits
from permafrost.stages.fit.run import Run, predict, start_run, train_epoch
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
    found: dict[tuple[int, str], Splits] = {}
    # By candidate: steps of an epoch, and when training ends.
    steps: list[int] = []
    limits: list[Limits] = []
    for candidate in config.candidates():
        data.reader(candidate.layer)
        require_fitting(candidate, data)
        kind = (candidate.seed, candidate.labels)
        if kind not in found:
            found[kind] = splits(*kind, data)
        require_negatives(candidate, found[kind][0])
        n_examples = len(found[kind][0])
        optim = candidate.optim.for_examples(n_examples)
        candidates.append(candidate.model_copy(update={"optim": optim}))
        steps.append(-(-n_examples // optim.batch_size))
        limits.append(optim.limits(n_examples))
    keeper = None if checkpoint is None else checkpoint_of(checkpoint, config, data)
    saved = None if keeper is None else keeper.load()
    trace = Trace() if saved is None else saved.trace
    sources = _Sources(data, found, torch.device(device))
    facts = _facts(data, next(iter(found.values()))[0])
    total = sum(n * limit.n_epochs for n, limit in zip(steps, limits, strict=True))
    written = time.monotonic()
    progress.start(f"fit {config.head.kind}", total, "steps")
    try:
        for number, candidate in enumerate(candidates):
            progress.advance(steps[number] * len(trace.epochs(number)))
            if not trace.is_over(number, candidate, limits[number]):
                training = _start(number, candidate, facts, sources, trace, saved)
                while not trace.is_over(number, candidate, limits[number]):
                    _epoch(training, trace, progress)
                    if keeper is not None and time.monotonic() - written >= checkpoint_every_s:
                        keeper.save(trace, training.run)
                        written = time.monotonic()
            spared = limits[number].n_epochs - len(trace.epochs(number))
            progress.advance(steps[number] * spared)
    finally:
        progress.finish()
    assert trace.best is not None, "there is at least one candidate and one epoch"
    best, state = trace.best
    width = data.reader(candidates[best.candidate].layer).width
    if keeper is not None:
        keeper.remove()
    return FitResult(
        config, tuple(candidates), best, tuple(trace.history), tuple(trace.log), width, facts, state
    )


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


@dataclass(frozen=True)
class _Training:
    """A candidate between two epochs."""

    number: int
    config: FitConfig
    run: Run
    train: Source
    dev: Source
    device: torch.device


def _start(
    number: int,
    candidate: FitConfig,
    facts: TaskFacts,
    sources: _Sources,
    trace: Trace,
    saved: Saved | None,
) -> _Training:
    trained, train, dev = sources.of(candidate)
    run = start_run(trained, facts, train.reader.width, sources.device)
    if saved is not None and trace.epochs(number):
        saved.restore(run)
    return _Training(number, trained, run, train, dev, sources.device)


def _epoch(training: _Training, trace: Trace, progress: Progress) -> None:
    """Train for one epoch, evaluate, record."""
    number, config, run = training.number, training.config, training.run
    earlier = trace.epochs(number)
    epoch = len(earlier) + 1
    said = f", dev {earlier[-1].dev_metric:.4f}" if earlier else ""
    total, log = 0.0, list[StepRecord]()
    first = -(-len(training.train.labels) // config.optim.batch_size) * (epoch - 1) + 1
    for step in train_epoch(run, config, training.train, epoch, training.device):
        total += step.loss * step.examples
        log.append(StepRecord(number, epoch, first + len(log), step.loss, step.lr))
        progress.advance(1, f"loss {step.loss:.4f}{said}")
    dev = training.dev
    answers = predict(run.model, dev, config.optim.batch_size, training.device)
    score = evaluate(config.metric, dev.labels, answers.values)
    record = EpochRecord(number, epoch, total / len(training.train.labels), score)
    trace.history.append(record)
    trace.log += log
    if trace.best is None or score > trace.best[0].dev_metric:
        trace.best = record, run.state()
