"""Train a head on stored features and keep the best epoch on dev.

Source: GLOT, section 4.1 (Adam, constant rate, argmax; the losses are those of `models`). We differ in
how long is trained (`optim`), and in the selection: the released code reports the best epoch of the very set
it selects on; here dev selects and test is never read.

A fit depends on its config and data alone.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from permafrost.stages.fit.checkpoint import checkpoint_of
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.models import TaskFacts
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.sources import pooled, source_of, source_with_negatives, with_reader
from permafrost.stages.fit.splits import (
    Splits,
    require_fitting,
    require_negatives,
    splits,
)
from permafrost.stages.fit.trained import FitResult
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.heads.head import AlreadyPooled
from permafrost.storage.progress import Progress


def fit(
    config: FitConfig,
    data: FitData,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 0.0,
    to_beat: float | None = None,
) -> FitResult:
    """Train a head, evaluate dev after every epoch, keep the best epoch, the earliest of equal ones.

    A pooling without parameters is applied once and what stands on it is trained on the vectors, which gives
    the same result.

    Args:
        config: the head and its training.
        data: features and examples; test is not read.
        progress: told about every step; the steps that an early end spares count as done.
        device: where to compute, for example "cuda"; not part of the config because it may not
            change the result beyond rounding.
        checkpoint: file that is written after an epoch and removed at the end. If it is there, from a
            killed fit of the same config and data, that one is continued, with the result it would
            have had. Another fit needs another file, and so does other code.
        checkpoint_every_s: seconds between two writes, at least.
        to_beat: for `config.grid_patience`: the best on dev of the candidates before.

    Raises:
        InputError: no train or dev examples, nothing to learn, a loss or metric of another task, array not
            given.
        PermafrostError: the loss or an answer is not finite.
        CorruptDataError: the checkpoint is damaged.
    """
    reader = data.reader(config.layer)
    require_fitting(config, data)
    found = splits(config.seed, config.labels, data)
    require_negatives(config, found[0])
    optim = config.optim.for_examples(len(found[0]))
    written_out = config.model_copy(update={"optim": optim})
    facts = _facts(data, found[0])
    file = None if checkpoint is None else checkpoint_of(checkpoint, config, data, to_beat)
    saved = None if file is None else file.load()
    written = time.monotonic()

    def keep() -> None:
        nonlocal written
        if file is not None and time.monotonic() - written >= checkpoint_every_s:
            file.save(trainer.state_dict())
            written = time.monotonic()

    n_steps = -(-len(found[0]) // optim.batch_size) * optim.limits(len(found[0])).n_epochs
    progress.start(f"fit {config.head.kind}", n_steps, "steps")
    try:
        trainee = _trainee(written_out, data, found, facts, torch.device(device))
        is_hopeless = partial(ends_early, config.grid_patience, to_beat)
        trainer = Trainer(trainee, trainee.plan, is_hopeless)
        if saved is not None:
            trainer.load_state_dict(saved)
        trainer.run(progress, keep)
    finally:
        progress.finish()
    if file is not None:
        file.remove()
    return FitResult.of(config, written_out, to_beat, trainer, reader.width, facts)


def ends_early(patience: int | None, to_beat: float | None, scores: Sequence[float]) -> bool:
    """Whether a candidate with these scores on dev, one per epoch, has not beaten those before it."""
    return (
        patience is not None
        and to_beat is not None
        and len(scores) >= patience
        and max(scores) <= to_beat
    )


def _facts(data: FitData, train: Examples) -> TaskFacts:
    if data.task == "similarity":
        return TaskFacts(data.task, (), (float(train.labels.min()), float(train.labels.max())))
    return TaskFacts(data.task, data.label_names)


def _trainee(
    config: FitConfig, data: FitData, found: Splits, facts: TaskFacts, device: torch.device
) -> HeadTrainee:
    examples, dev_examples = found
    reader = data.reader(config.layer)
    source = source_with_negatives if config.loss.adds_negatives else source_of
    train, dev = source(examples, reader), source_of(dev_examples, reader)
    if not config.head.trains:
        train, dev = (
            with_reader(s, pooled(config.head, s.reader, config.optim.batch_size, device))
            for s in (train, dev)
        )
        config = config.model_copy(update={"head": AlreadyPooled()})
    return HeadTrainee(config, facts, train, dev, device)
