"""Train a head on stored features and keep the best epoch on dev.

Source: GLOT, section 4.1 (Adam, constant rate, argmax; for the losses see `losses`). We differ in the length
of training (`optim`) and in model selection: the released code reports the best epoch on the same set it
selects on; here dev selects and test is never read.

A fit depends on its config and data alone; where features of single texts do not fit the memory that they
may take, also on how they are read (`storage.readers`), as by another seed.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from permafrost.stages.fit.checkpoint import checkpoint_of, train_resumably
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.models import TaskFacts
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.sources import pooled, source_of, source_with_negatives, with_reader
from permafrost.stages.fit.splits import (
    Splits,
    require_fitting,
    require_negatives,
    require_parameters,
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
    """Train a head, evaluate on dev after every epoch, and keep the best epoch, the earliest of equal ones.

    A pooling without parameters is applied once, and the layers on top are trained on its vectors, which
    gives the same result.

    Args:
        config: the head and its training.
        data: features and examples; test is not read.
        progress: receives every step; steps saved by early stopping count as done.
        device: where to compute, for example "cuda"; not part of the config because it may not
            change the result beyond rounding.
        checkpoint: file that is written after an epoch. If it exists, from a killed fit of the same config
            and data, that fit is resumed, with the result it would have had. Use one file per fit and version
            of the code, and remove it once the result is saved.
        checkpoint_every_s: minimum seconds between two writes.
        to_beat: for `config.grid_patience`: the best dev metric of the candidates before.

    Raises:
        InputError: there are no train or dev examples, nothing to learn, or a loss or metric of another kind
            of task.
        NotFoundError: `data` has no reader for the config's array.
        PermafrostError: the loss or an answer is not finite.
        CorruptDataError: the checkpoint is damaged.
    """
    reader = data.reader(config.layer)
    require_fitting(config, data)
    require_parameters(config, data)
    train, dev = splits(config.seed, config.labels, data)
    require_negatives(config, train)
    optim = config.optim.for_examples(len(train))
    trained = config.model_copy(update={"optim": optim})
    facts = facts_of(data, train)
    file = None
    if checkpoint is not None:
        file = checkpoint_of(checkpoint, config, data, to_beat, checkpoint_every_s)
    n_steps = -(-len(train) // optim.batch_size) * optim.limits(len(train)).n_epochs
    progress.start(f"fit {config.head.kind}", n_steps, "steps")
    try:
        trainee = _trainee(trained, data, (train, dev), facts, torch.device(device))
        is_hopeless = partial(ends_early, config.grid_patience, to_beat)
        trainer = Trainer(trainee, trainee.plan, is_hopeless)
        train_resumably(trainer, progress, file)
    finally:
        progress.finish()
    return FitResult.of(config, trained, to_beat, trainer, reader.width, facts)


def ends_early(patience: int | None, to_beat: float | None, scores: Sequence[float]) -> bool:
    """Whether a candidate should stop: after `patience` epochs none of its dev scores is above `to_beat`."""
    return (
        patience is not None
        and to_beat is not None
        and len(scores) >= patience
        and max(scores) <= to_beat
    )


def facts_of(data: FitData, train: Examples) -> TaskFacts:
    """What a model has to know about the corpus it is trained on."""
    if data.task == "similarity":
        return TaskFacts(data.task, (), (float(train.labels.min()), float(train.labels.max())))
    return TaskFacts(data.task, data.label_names)


def _trainee(
    config: FitConfig, data: FitData, examples: Splits, facts: TaskFacts, device: torch.device
) -> HeadTrainee:
    train_examples, dev_examples = examples
    reader = data.reader(config.layer)
    source = source_with_negatives if config.loss.adds_negatives else source_of
    train, dev = source(train_examples, reader), source_of(dev_examples, reader)
    if not config.head.trains:
        train, dev = (
            with_reader(s, pooled(config.head, s.reader, config.optim.batch_size, device))
            for s in (train, dev)
        )
        config = config.model_copy(update={"head": AlreadyPooled()})
    return HeadTrainee(config, facts, train, dev, device)
