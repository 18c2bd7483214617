"""Pretrain one autoencoder per layer on the latents of generic texts.

Source: FREEZE!, 4.2.3. The autoencoders share nothing: their losses are summed only so that one backward pass
computes all gradients, each layer has its own learning rate, and each keeps its own best epoch. We differ:
the notebooks keep the last epoch, train on all texts, and drop the last partial batch.
Axes: n texts, m other texts, l layers, d d_model.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.fit.checkpoint import Checkpoint, train_resumably
from permafrost.stages.fit.trainer import Plan, Trainee, Trainer, shuffled_batches
from permafrost.stages.freeze.config import AutoencoderConfig
from permafrost.stages.freeze.encoders import (
    LayerAutoencoders,
    dropout_states,
    load_dropout_states,
)
from permafrost.stages.freeze.latents import LEAST, gather
from permafrost.stages.freeze.layerwise import (
    LayerwiseAdamW,
    held_out,
    keep_layers,
    rates_by_layer,
)
from permafrost.stages.freeze.pretrained import AutoencoderResult, ErrorsElsewhere, LayerEpoch
from permafrost.stages.freeze.scaling import StandardFeatures, scaling
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.progress import Progress


def pretrain(
    config: AutoencoderConfig,
    latents: Float32[np.ndarray, "n l d"],
    progress: Progress,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
    other_latents: Float32[np.ndarray, "m l d"] | None = None,
) -> AutoencoderResult:
    """Train every layer's autoencoder, and keep its epoch with the lowest error on held-out texts.

    Args:
        config: sizes and training.
        latents: one row per text and layer, from `read_latents`; may be memory-mapped.
        progress: receives every step.
        device: where to compute; not part of the config because it may not change the result beyond
            rounding and the masks of dropout.
        checkpoint: if a killed fit left it, that fit is resumed, with the result it would have had; one per
            fit, version of the code and kind of device.
        other_latents: of other texts, on which the error is measured too, after every epoch; they change
            nothing else.

    Raises:
        InputError: there are fewer than two texts, or no other ones.
        PermafrostError: a reconstruction error is not finite.
        CorruptDataError: the checkpoint is damaged.
    """
    require_texts(len(latents))
    if other_latents is not None and not len(other_latents):
        raise InputError(
            "there are no other texts to measure the error on; give at least one, or None"
        )
    train, dev = held_out(len(latents), config.dev_share, config.seed)
    n_layers, d_model = latents.shape[1:]
    trainee = AutoencoderTrainee(config, latents, train, dev, torch.device(device), other_latents)
    trainer = Trainer(trainee, Plan(config.max_epochs, len(trainee.batches(1))))
    progress.start("pretrain autoencoders", trainer.plan.n_epochs * trainer.plan.n_steps, "steps")
    try:
        train_resumably(trainer, progress, checkpoint)
    finally:
        progress.finish()
    history = [
        LayerEpoch(epoch.epoch, layer, epoch.losses[layer], error)
        for epoch, errors in zip(trainer.history, trainee.dev_errors, strict=True)
        for layer, error in enumerate(errors)
    ]
    chosen = tuple(
        history[(best.epoch - 1) * n_layers + layer] for layer, best in enumerate(trainer.best)
    )
    log = tuple(trainer.log)
    variance = trainee.variance(latents, dev)
    elsewhere = None
    if other_latents is not None:
        elsewhere = ErrorsElsewhere(
            tuple(map(tuple, trainee.other_errors)),
            trainee.variance(other_latents, np.arange(len(other_latents))),
            len(other_latents),
        )
    return AutoencoderResult(
        config, n_layers, d_model, chosen, tuple(history), trainer.kept, log, variance, elsewhere
    )


class AutoencoderTrainee(Trainee[LayerAutoencoders, NDArray[np.int64]]):
    """The autoencoders of all layers, each a part with its own learning rate."""

    noun = "mse"

    def __init__(
        self,
        config: AutoencoderConfig,
        latents: NDArray[np.float32],
        train: NDArray[np.int64],
        dev: NDArray[np.int64],
        device: torch.device,
        other_latents: NDArray[np.float32] | None,
    ) -> None:
        self.config, self.latents, self.train, self._dev = config, latents, train, dev
        self.device, self._other = device, other_latents
        n_layers, d_model = latents.shape[1:]
        draw = torch.Generator().manual_seed(config.seed)
        self.dev_errors: list[list[float]] = []
        """Of every layer after every epoch."""
        self.other_errors: list[list[float]] = []
        """The same on other texts; empty where there are none."""
        self.model = LayerAutoencoders(config.encoders, n_layers, d_model, draw, config.joined).to(
            device
        )
        self.scaling = scaling(config.scale, n_layers, d_model).to(device)
        parts = np.array_split(train, len(self.batches(1)))
        self.scaling.fit(lambda: (gather(latents, part, device) for part in parts))
        rates = rates_by_layer(config.lr, n_layers)
        shared = () if self.model.up is None else tuple(self.model.up.parameters())
        self.optimizer = LayerwiseAdamW(self.model, rates, config.weight_decay, shared)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Indices into the texts held for training."""
        config = self.config
        return shuffled_batches(len(self.train), config.batch_size, config.seed, epoch, LEAST)

    def loss(self, batch: NDArray[np.int64]) -> tuple[Tensor, int]:
        """Each layer's reconstruction error."""
        return self.model.errors(self._scaled(self.latents, self.train[batch])), len(batch)

    def _scaled(self, latents: NDArray[np.float32], texts: NDArray[np.int64]) -> Tensor:
        return self.scaling(gather(latents, texts, self.device))

    @torch.no_grad()
    def dev(self) -> list[float]:
        """Minus each layer's reconstruction error on the held-out texts; minus the mean over layers for those
        that share an embedding, as they are kept together."""
        errors = self._errors(self.latents, self._dev)
        self.dev_errors.append(errors)
        if self._other is not None:
            self.other_errors.append(self._errors(self._other, np.arange(len(self._other))))
        if self.config.joined is not None:
            return [-sum(errors) / len(errors)] * len(errors)
        return [-error for error in errors]

    def _errors(self, latents: NDArray[np.float32], texts: NDArray[np.int64]) -> list[float]:
        total_L = torch.zeros(latents.shape[1], dtype=torch.float64, device=self.device)
        for start in range(0, len(texts), self.config.batch_size):
            batch = texts[start : start + self.config.batch_size]
            total_L += self.model.errors(self._scaled(latents, batch)) * len(batch)
        return (total_L / len(texts)).tolist()

    @torch.no_grad()
    def variance(self, latents: NDArray[np.float32], texts: NDArray[np.int64]) -> tuple[float, ...]:
        """Of each layer's scaled latents of these texts: the mean over their numbers, divided by n."""
        n_layers, d_model = latents.shape[1:]
        spread = StandardFeatures(n_layers, d_model).to(self.device)
        parts = np.array_split(texts, 1 + len(texts) // self.config.batch_size)
        spread.fit(lambda: (self._scaled(latents, part) for part in parts))
        return tuple(spread.deviation.double().square().mean(dim=1).tolist())

    @torch.no_grad()
    def keep(self, kept: dict[str, Tensor], parts: Sequence[int]) -> None:
        """Copy the rows of these layers."""
        if not kept or self.config.joined is not None:
            super().keep(kept, parts)
        else:
            keep_layers(self.model, kept, parts)

    def shown(self, dev: Sequence[float]) -> str:
        """Nothing, as there are too many layers to show."""
        return ""

    def state(self) -> dict[str, Any]:
        """Where dropout's generators are, and the errors so far."""
        return {
            "dropout": dropout_states(self.model),
            "dev_errors": self.dev_errors,
            "other_errors": self.other_errors,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Dropout goes on as it would have."""
        load_dropout_states(self.model, state["dropout"], self.device)
        self.dev_errors = [list(errors) for errors in state["dev_errors"]]
        self.other_errors = [list(errors) for errors in state["other_errors"]]

    def broken(self, what: str, part: int, value: float) -> PermafrostError:
        """An error that names the layer and the learning rate."""
        return PermafrostError(
            f"the reconstruction error of layer {part} (from 0) is {abs(value)} {what} "
            f"with lr {self.config.lr}; lower lr, or check the features with 'permafrost verify'"
        )


def require_texts(n_texts: int) -> None:
    """Check that some texts can be held out.

    Raises:
        InputError: there are fewer than two.
    """
    if n_texts < 2:
        raise InputError(
            f"autoencoders are trained on some texts and chosen on others, but there are {n_texts}; give "
            "at least 2"
        )
