"""Train a pair head on graded pairs and keep its best epoch on dev.

Source: FREEZE!, 4.1 and 4.2. We differ in model selection: the notebooks keep the best epoch on test; here
dev selects. Test is read only where its scores by epoch are asked for, to show what the notebooks' choice
would have given, and chooses nothing.

A fit depends on its config, its latents and its pairs alone.
Axes: n texts, l layers, d d_model, p pairs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.fit.checkpoint import Checkpoint, train_resumably
from permafrost.stages.fit.one_number import one_number
from permafrost.stages.fit.trainer import Plan, Trainee, Trainer, shuffled_batches
from permafrost.stages.freeze.config import PairFitConfig
from permafrost.stages.freeze.encoders import (
    PretrainedEncoders,
    dropout_states,
    load_dropout_states,
)
from permafrost.stages.freeze.graded import GradedPairs
from permafrost.stages.freeze.latents import LEAST, gather
from permafrost.stages.freeze.pair_fit import PairEpoch, PairFitResult, new_head
from permafrost.stages.freeze.pair_heads import PairHead, similarities
from permafrost.stages.metrics.correlations import pearson, spearman
from permafrost.storage.errors import PermafrostError
from permafrost.storage.progress import Progress

_PAIRS_AT_A_TIME = 256
_CORRELATIONS = {"pearson": pearson, "spearman": spearman}
_ON_TEST = "on test"
_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def fit_pairs(
    config: PairFitConfig,
    latents: Float32[np.ndarray, "n l d"],
    train: GradedPairs,
    dev: GradedPairs,
    autoencoders: PretrainedEncoders | None,
    progress: Progress,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
    test: GradedPairs | None = None,
) -> PairFitResult:
    """Train, evaluate on dev every few epochs, and keep the best evaluated epoch, the earliest of equal ones.

    Args:
        config: the head and its training.
        latents: one row per text and layer, from `read_latents`; they get no gradient.
        train: pairs to train on; the control permutes their labels, and those of dev.
        dev: pairs to choose the epoch on.
        autoencoders: initial weights of the head's encoders; None for random ones.
        progress: receives every step.
        device: where to compute; not part of the config because it may not change the result beyond
            rounding and the masks of dropout.
        test: pairs whose correlation is kept after every evaluated epoch; it has no part in the fit. Without
            them nothing of test is kept.
        checkpoint: if a killed fit left it, that fit is resumed, with the result it would have had; one per
            fit, version of the code and kind of device.

    Raises:
        InputError: pairs or labels cannot be used, or the autoencoders do not fit the head.
        PermafrostError: the loss is not finite, or every evaluated epoch gives all dev pairs the same
            similarity.
        CorruptDataError: the checkpoint is damaged.
    """
    train.require("train", len(latents))
    dev.require("dev", len(latents))
    if config.labels == "shuffled":
        # Separate random streams, so that neither permutation is the one that orders the batches.
        train, dev = (
            pairs.shuffled(np.random.default_rng([config.seed, 1 << 32, stream]))
            for stream, pairs in enumerate((train, dev))
        )
    n_layers, d_model = latents.shape[1:]
    trainee = PairTrainee(config, latents, train, dev, autoencoders, torch.device(device), test)
    trainer = Trainer(trainee, trainee.plan)
    progress.start(f"fit {config.head.kind}", trainer.plan.n_epochs * trainer.plan.n_steps, "steps")
    try:
        train_resumably(trainer, progress, checkpoint)
    finally:
        progress.finish()
    if not trainer.best:
        raise PermafrostError(
            f"the head {config.head.kind} gives all {len(dev)} dev pairs the same similarity in every "
            f"evaluated epoch (lr {config.lr}, loss {config.loss.kind}); lower lr or use the other loss"
        )
    history = [
        PairEpoch(e.epoch, e.losses[0], None if e.dev is None else e.dev[0])
        for e in trainer.history
    ]
    best = history[trainer.best[0].epoch - 1]
    return PairFitResult(
        *(config, n_layers, d_model, best, tuple(history), trainer.kept, tuple(trainer.log)),
        test_by_epoch=tuple(zip(_evaluated(config), trainee.on_test, strict=True)) if test else (),
    )


def _evaluated(config: PairFitConfig) -> list[int]:
    """Epochs after which dev is evaluated, counted from 1."""
    last, every = config.max_epochs, config.evaluate_every
    return [epoch for epoch in range(1, last + 1) if epoch % every == 0 or epoch == last]


class PairTrainee(Trainee[PairHead, NDArray[np.int64]]):
    """A pair head in training; the same seed gives the same initial weights on every device."""

    def __init__(
        self,
        config: PairFitConfig,
        latents: NDArray[np.float32],
        train: GradedPairs,
        dev: GradedPairs,
        autoencoders: PretrainedEncoders | None,
        device: torch.device,
        test: GradedPairs | None = None,
    ) -> None:
        self.config, self.latents, self.train, self._dev = config, latents, train, dev
        self._test = test
        self.on_test: list[float] = []
        """The correlation on test after every evaluated epoch, of which nothing comes."""
        self.device = device
        self.model = _start(config, latents, train, autoencoders, device)
        self.optimizer = _OPTIMIZERS[config.optimizer](
            self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )

    @property
    def plan(self) -> Plan:
        """The config's training plan."""
        config = self.config
        n_steps = len(self.batches(1))
        return Plan(config.max_epochs, n_steps, evaluate_every=config.evaluate_every)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Indices of pairs."""
        config = self.config
        return shuffled_batches(len(self.train), config.batch_size, config.seed, epoch, LEAST)

    def loss(self, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """The loss of the predicted similarities."""
        first, second = self.train.pairs[batch].T
        a, b = (
            self.model.scaling(gather(self.latents, texts, self.device))
            for texts in (first, second)
        )
        predicted = similarities(self.model, a, b)
        gold = torch.from_numpy(self.train.labels[batch]).to(predicted)
        loss = self.config.loss
        return one_number(loss, loss.of(predicted, gold)), len(batch)

    def dev(self) -> tuple[float] | None:
        """The correlation of similarities with labels; None if all similarities are equal."""
        correlate = _CORRELATIONS[self.config.metric]
        if self._test is not None:
            answers = predict(self.model, self.latents, self._test.pairs)
            self.on_test.append(correlate(answers.astype(np.float64), self._test.labels))
        predicted = predict(self.model, self.latents, self._dev.pairs)
        if np.ptp(predicted) == 0:
            return None
        return (correlate(predicted.astype(np.float64), self._dev.labels),)

    def state(self) -> dict[str, Any]:
        """Where dropout's generators are, and what test gave so far."""
        return {**dropout_states(self.model), _ON_TEST: list(self.on_test)}

    def restore(self, state: dict[str, Any]) -> None:
        """Dropout goes on as it would have."""
        load_dropout_states(self.model, state, self.device)
        self.on_test = list(state.get(_ON_TEST, ()))

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """An error that names the head and its learning rate."""
        config = self.config
        return PermafrostError(
            f"the loss {config.loss.kind} is {value} {what} of the head "
            f"{config.head.kind} with lr {config.lr}; lower lr, or check the features with "
            "'permafrost verify'"
        )


@torch.no_grad()
def predict(
    head: PairHead, latents: Float32[np.ndarray, "n l d"], pairs: Int64[np.ndarray, "p 2"]
) -> Float32[np.ndarray, " p"]:
    """The similarity of each pair, in [0, 1], computed on the head's device with dropout off.

    Raises:
        PermafrostError: a similarity is not a number.
    """
    head.eval()
    device = next(head.parameters()).device
    scale = head.scaling
    batches = _in_order(latents, pairs, device)
    parts = [similarities(head, scale(a), scale(b)).cpu().numpy() for a, b in batches]
    found = np.concatenate([np.empty(0, np.float32), *parts])
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        first, second = pairs[wrong[0]]
        raise PermafrostError(
            f"{len(wrong)} of {len(pairs)} similarities are not numbers (the first is that of the texts "
            f"{first} and {second}); check the features with 'permafrost verify'"
        )
    return found


def _batches(
    latents: NDArray[np.float32], texts: NDArray[np.int64], device: torch.device
) -> Iterator[Tensor]:
    for start in range(0, len(texts), _PAIRS_AT_A_TIME):
        yield gather(latents, texts[start : start + _PAIRS_AT_A_TIME], device)


def _in_order(
    latents: NDArray[np.float32], pairs: NDArray[np.int64], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(pairs), _PAIRS_AT_A_TIME):
        batch = pairs[start : start + _PAIRS_AT_A_TIME]
        yield gather(latents, batch[:, 0], device), gather(latents, batch[:, 1], device)


def _start(
    config: PairFitConfig,
    latents: NDArray[np.float32],
    train: GradedPairs,
    autoencoders: PretrainedEncoders | None,
    device: torch.device,
) -> PairHead:
    """A new head on its device; the same seed gives the same weights on every device."""
    head = new_head(config, latents.shape[1], latents.shape[2])
    if autoencoders is not None:
        head.load_encoders(autoencoders)
    head.to(device)
    texts = np.unique(train.pairs)
    head.scaling.fit(lambda: _batches(latents, texts, device))
    pairs = _in_order(latents, train.pairs, device)
    head.prepare((head.scaling(a), head.scaling(b)) for a, b in pairs)
    return head
