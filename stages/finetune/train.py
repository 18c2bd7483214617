"""Train a graph-text model with the backbone in the loop, and keep the best epoch on dev.

Source: GT2VEC, section 2 and table 8. We choose the epoch on dev, which the paper does not say.
"""

from pathlib import Path

import torch

from permafrost.stages.finetune.cases import require_cases
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.identity import identity_of
from permafrost.stages.finetune.module import GraphTextModule
from permafrost.stages.finetune.trained import FinetuneResult
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.stages.fit.checkpoint import Checkpoint, train_resumably
from permafrost.stages.fit.history import EpochRecord
from permafrost.stages.fit.trainer import Trainer
from permafrost.storage.progress import Progress


def finetune(
    config: FinetuneConfig,
    data: FinetuneData,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 0.0,
) -> FinetuneResult:
    """Train, evaluate on dev after every epoch, and keep the best epoch, the earliest of equal ones. Where
    there is nothing to train, only evaluate.

    Args:
        config: the model and its training.
        data: corpus, features and backbone, which is changed if `config.train` trains it; test is not read.
        progress: receives every step.
        device: where the model is trained; that of the backbone, if it runs one.
        checkpoint: file that is written in the middle of epochs. If it exists, from a killed fine-tuning of
            the same config and data on the same kind of device, that one is resumed, with the result it would
            have had. Use one file per fine-tuning and version of the code, and remove it once the result is
            saved.
        checkpoint_every_s: minimum seconds between two writes.

    Raises:
        InputError: there are no train or dev cases, or a loss of another kind of task.
        PermafrostError: the loss, or an embedding or a score on dev, is not finite, or an item does not fit
            in memory.
        CorruptDataError: the checkpoint is damaged.
    """
    require_cases(config, data.corpus)
    module = build_module(config, data)
    trainee = GraphTextTrainee(config, data, module, torch.device(device))
    if not module.n_parameters:
        return _untrained(config, data, trainee)
    file = None
    if checkpoint is not None:
        file = Checkpoint(
            checkpoint, identity_of(config, data, device), checkpoint_every_s, "steps"
        )
    plan = trainee.plan
    trainer = Trainer(trainee, plan)
    progress.start(f"finetune {config.model.kind}", plan.n_steps * plan.n_epochs, "steps")
    try:
        train_resumably(trainer, progress, file)
    finally:
        progress.finish()
    return FinetuneResult.of(config, data.facts(config), trainee, trainer)


def _untrained(
    config: FinetuneConfig, data: FinetuneData, trainee: GraphTextTrainee
) -> FinetuneResult:
    """The backbone's own vectors, scored on dev once, as epoch 0; no history."""
    trainee.model.eval()
    best = EpochRecord(epoch=0, train_loss=float("nan"), dev_metric=trainee.dev()[0])
    return FinetuneResult(
        config=config,
        facts=data.facts(config),
        best=best,
        history=(),
        log=(),
        aligned=(),
        at_a_time=trainee.fitting.at_a_time,
        n_parameters=0,
        state=trainee.model.state_dict(),
        tuned=None,
        relations=data.corpus.relations,
        relation_words=data.corpus.relation_words,
    )


def build_module(config: FinetuneConfig, data: FinetuneData) -> GraphTextModule:
    """A new model on the CPU; the same seed gives the same weights. What is trained of the backbone is made
    trainable in place.

    Raises:
        InputError: widths do not fit.
    """
    draw = torch.Generator().manual_seed(config.seed)
    module = config.model.build(data.facts(config), draw)
    # After the model's own weights: those are the same, whatever else is trained.
    if data.live is not None:
        module.tuned = config.train.attach(data.live.backbone, draw)
    return module
