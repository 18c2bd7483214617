"""A head trained together with its backbone, on the heads' tasks and by their protocol.

Source: GLOT, tables 5, 9, 14 and 17 (full fine-tuning and LoRA beside the cached head). We differ as the
heads' fits do: dev selects the epoch, and test is never read. With a frozen backbone (`train: probe`) it is
the cached head's fit, computed on the fly.
Axes: t tokens of all texts, n texts, e width of an encoding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from permafrost.stages.finetune.fitting import Fitting
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.module import Embedded
from permafrost.stages.finetune.parts import gradients_in_parts
from permafrost.stages.finetune.recomputing import recomputing
from permafrost.stages.finetune.tuned import TUNED, Tuned
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig, prepared
from permafrost.stages.fit.checkpoint import Checkpoint, checkpoint_of, train_resumably
from permafrost.stages.fit.data import Examples, FitData
from permafrost.stages.fit.history import EpochRecord
from permafrost.stages.fit.metrics import evaluate
from permafrost.stages.fit.models import TaskFacts, TaskModel, build_model
from permafrost.stages.fit.run import plan_of, predict
from permafrost.stages.fit.sources import source_of, source_with_negatives
from permafrost.stages.fit.trained import FitResult
from permafrost.stages.fit.trainer import RATE_FACTOR, Plan, Trainee, Trainer
from permafrost.stages.fit.training import facts_of
from permafrost.storage.errors import PermafrostError
from permafrost.storage.keys import digest
from permafrost.storage.progress import Progress
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import Batch, InMemoryReader

HEAD = "head."
"""Prefix, in the state of a training, of the head's parameters."""


class TunedModel(nn.Module):
    """A head with its task's layers, and what is trained of the backbone."""

    def __init__(self, head: TaskModel, tuned: Tuned | None) -> None:
        super().__init__()
        self.head, self.tuned = head, tuned


@dataclass(frozen=True)
class TunedHeadResult:
    """What a fine-tuning ends with."""

    config: TunedHeadConfig
    fit: FitResult
    """The head."""
    backbone: dict[str, Tensor]
    """What was trained of the backbone at the best epoch, as in the state of `tuned`."""
    tuned: Tuned | None
    n_tuned: int
    """Trained parameters of the backbone."""
    n_reached: int
    """Those of them that got a gradient: others lie behind what the head reads."""
    at_a_time: int | None
    """Texts that were computed at a time at the end; None for whole batches."""


class TunedHeadTrainee(Trainee[TunedModel, Batch]):
    """A head and its backbone in training; the same seed gives the same initial weights on every device.

    Args:
        config: with its limits filled in.
        facts: what the model needs to know about the corpus.
        examples: of train and dev.
        reader: of all texts of the corpus; what is trained of its backbone is changed.
        device: where to compute.
    """

    def __init__(
        self,
        config: TunedHeadConfig,
        facts: TaskFacts,
        examples: tuple[Examples, Examples],
        reader: LiveReader,
        device: torch.device,
    ) -> None:
        self.config, self._reader, self.device = config, reader, device
        train, dev = examples
        sourced = source_with_negatives if config.fit.loss.adds_negatives else source_of
        # The numbers of texts in place of their rows, which are computed in the step itself.
        self._train = sourced(train, _numbers(reader.n_texts))
        self._dev = source_of(dev, reader)
        head = build_model(config.fit, facts, reader.width)
        # After the head's own weights: those are the cached head's, whatever else is trained.
        draw = torch.Generator().manual_seed(config.fit.seed)
        self.model = TunedModel(head, config.train.attach(reader.backbone, draw)).to(device)
        self.reached: set[str] = set()
        """Parameters that got a gradient."""
        # An optimiser of nothing cannot be made; a model without parameters is only scored.
        if self.trains:
            self.optimizer = self._optimizer()
        self.fitting = Fitting(self.model, device, config.optim.at_a_time, "one text")

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return any(p.requires_grad for p in self.model.parameters())

    def _optimizer(self) -> torch.optim.Optimizer:
        optim = self.config.optim
        rate = self.config.train.usual_lr if optim.backbone_lr is None else optim.backbone_lr
        tuned = [] if self.model.tuned is None else list(self.model.tuned.parameters())
        groups = [
            {"params": list(self.model.head.parameters()), RATE_FACTOR: 1.0},
            {"params": tuned, RATE_FACTOR: rate / optim.lr},
        ]
        groups = [group for group in groups if group["params"]]
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optim.optimizer]
        return kind(groups, lr=optim.lr, weight_decay=optim.weight_decay, fused=True)

    @property
    def plan(self) -> Plan:
        """The config's training plan for the number of train examples."""
        return plan_of(self.config.optim, len(self._train.labels))

    def batches(self, epoch: int) -> Any:
        """Indices of examples, with the numbers of their texts; the batches of the cached head."""
        return self._train.shuffled(self.config.optim.batch_size, self.config.fit.seed, epoch)

    def _encode(self, texts: NDArray[np.int64]) -> Float[Tensor, "n e"]:
        optim, tuned = self.config.optim, self.model.tuned
        is_again = optim.activations == "recomputed" and torch.is_grad_enabled()

        @contextmanager
        def around() -> Iterator[None]:
            with (
                nullcontext() if tuned is None else tuned.drawing(),
                recomputing(self._reader.backbone, self._reader.n_whole_blocks)
                if is_again
                else nullcontext(),
            ):
                yield

        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=optim.precision == "bfloat16"),
            nullcontext() if tuned is not None and torch.is_grad_enabled() else torch.no_grad(),
        ):
            rows, offsets = self._reader.rows(texts, around)
        return self.model.head(rows, offsets)

    def _loss(self, picked: NDArray[np.int64], encoded: Tensor) -> Tensor:
        labels = torch.from_numpy(self._train.labels[picked]).to(self.device)
        return self.model.head.loss(encoded, labels)

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        """The loss of a batch that is computed whole."""
        picked, texts = batch
        return self._loss(picked, self._encode(texts.data[:, 0])), len(picked)

    def gradients(
        self, batch: Batch, require_finite: Callable[[Sequence[float]], None]
    ) -> tuple[list[float], int]:
        """In parts if the batch does not fit, or is not meant to, at a time."""
        picked, texts = batch[0], batch[1].data[:, 0]

        def compute(at_a_time: int | None) -> tuple[list[float], int]:
            self.optimizer.zero_grad()
            if at_a_time is None or at_a_time >= len(texts):
                return super(TunedHeadTrainee, self).gradients(batch, require_finite)

            def loss(embedded: Embedded) -> Tensor:
                value = self._loss(picked, embedded.z)
                require_finite([float(value.detach())])
                return value

            value = gradients_in_parts(
                self.model,
                lambda part: Embedded(self._encode(texts[part])),
                len(texts),
                at_a_time,
                loss,
            )
            return [float(value)], len(picked)

        found = self.fitting.run(len(texts), compute)
        named = self.model.named_parameters()
        self.reached |= {name for name, weight in named if weight.grad is not None}
        return found

    def dev(self) -> tuple[float]:
        """The config's metric on dev."""
        fit = self.config.fit

        def compute(at_a_time: int | None) -> tuple[float]:
            size = min(at_a_time or self.config.optim.batch_size, self.config.optim.batch_size)
            answers = predict(self.model.head, self._dev, size, self.device)
            return (evaluate(fit.metric, self._dev.labels, answers.values),)

        return self.fitting.run(self.config.optim.batch_size, compute)

    def state(self) -> dict[str, Any]:
        """How many texts fit in memory, and what got a gradient."""
        return {"at_a_time": self.fitting.at_a_time, "reached": sorted(self.reached)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.fitting.at_a_time = state["at_a_time"]
        self.reached = set(state["reached"])

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """An error that names the fine-tuning and its learning rates."""
        return PermafrostError(
            f"the loss is {value} {what} of the fine-tuning {self.config.model_dump_json()}; lower "
            "optim.lr and optim.backbone_lr, or train in float32"
        )


def _numbers(n_texts: int) -> InMemoryReader:
    """Text i has one row, the number i."""
    rows = Ragged(np.arange(n_texts)[:, None], np.arange(n_texts + 1))
    return InMemoryReader("texts", rows, precision="stored")


def finetune_head(
    config: TunedHeadConfig,
    data: FitData,
    reader: LiveReader,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 0.0,
) -> TunedHeadResult:
    """Train a head with its backbone, evaluate on dev after every epoch, and keep the best one. Where neither
    has anything to train, only evaluate.

    Args:
        config: of head, backbone and training.
        data: the corpus; its one reader is `reader`, and test is not read.
        reader: of the config's array. Its backbone is the caller's own if it is trained.
        progress: receives every step.
        device: where the backbone is.
        checkpoint: file that is written in the middle of epochs. If it exists, from a killed fine-tuning of
            the same config and data on the same kind of device, that one is resumed, with the result it would
            have had. Use one file per fine-tuning and version of the code, and remove it once the result is
            saved.
        checkpoint_every_s: minimum seconds between two writes.

    Raises:
        InputError: see `prepared`.
        PermafrostError: the loss or an answer is not finite, or one text does not fit in memory.
        CorruptDataError: the checkpoint is damaged.
    """
    whole, examples = prepared(config, data)
    fit, facts = whole.fit, facts_of(data, examples[0])
    where, file = torch.device(device), None
    if checkpoint is not None:
        file = checkpoint_on(checkpoint, whole, data, where, checkpoint_every_s)
    trainee = TunedHeadTrainee(whole, facts, examples, reader, where)
    if not trainee.trains:
        return _untrained(config, trainee, reader.width, facts)
    trainer = Trainer(trainee, trainee.plan)
    n_steps = trainee.plan.n_steps * trainee.plan.n_epochs
    progress.start(f"finetune {fit.head.kind}", n_steps, "steps")
    try:
        train_resumably(trainer, progress, file)
    finally:
        progress.finish()
    result = FitResult.of(fit, fit, None, trainer, reader.width, facts)
    head = _under(HEAD, trainer.kept)
    tuned = trainee.model.tuned
    weights = {} if tuned is None else dict(tuned.named_parameters(prefix=TUNED[:-1]))
    return TunedHeadResult(
        config=config,
        fit=replace(result, state=head),
        backbone=_under(TUNED, trainer.kept),
        tuned=tuned,
        n_tuned=sum(w.numel() for w in weights.values()),
        n_reached=sum(w.numel() for name, w in weights.items() if name in trainee.reached),
        at_a_time=trainee.fitting.at_a_time,
    )


def _untrained(
    config: TunedHeadConfig, trainee: TunedHeadTrainee, d_in: int, facts: TaskFacts
) -> TunedHeadResult:
    """The backbone's own vectors, scored on dev once, as epoch 0; no history."""
    trainee.model.eval()
    best = EpochRecord(epoch=0, train_loss=float("nan"), dev_metric=trainee.dev()[0])
    fit = trainee.config.fit
    head = {name: value.cpu() for name, value in trainee.model.head.state_dict().items()}
    return TunedHeadResult(
        config=config,
        fit=FitResult(fit, fit, None, best, (), (), d_in, facts, head),
        backbone={},
        tuned=None,
        n_tuned=0,
        n_reached=0,
        at_a_time=trainee.fitting.at_a_time,
    )


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def checkpoint_on(
    path: Path, config: TunedHeadConfig, data: FitData, device: torch.device, every_s: float
) -> Checkpoint:
    """The checkpoint of one fine-tuning on one kind of device: dropout draws otherwise on another."""
    base = checkpoint_of(path, config.fit, data, None)
    facts = {"fit": base.identity, "config": config.model_dump(mode="json"), "device": device.type}
    identity = digest(facts)
    return Checkpoint(path, identity, every_s, "steps")
