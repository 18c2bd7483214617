"""How a head is trained: the optimiser, its learning-rate schedule, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_STEPS

if TYPE_CHECKING:
    import torch

LEAST_EPOCHS, LEAST_PATIENCE = 2, 5
"""Lower bounds in epochs if `max_epochs` and `patience` are not given."""


class Limits(NamedTuple):
    """When training ends."""

    n_epochs: int
    """Maximum number of epochs."""
    patience: int | None
    """Epochs without improvement on dev before training stops; None for never."""


def limits_of(
    max_epochs: int | None,
    patience: int | Literal["auto"] | None,
    max_steps: int,
    steps_per_epoch: int,
) -> Limits:
    """The limits where `max_epochs` is not given (as many epochs as begin within `max_steps`, at least two)
    or `patience` is `auto` (as many as make up a tenth of the steps, at least five)."""
    if max_epochs is None:
        max_epochs = max(math.ceil(max_steps / steps_per_epoch), LEAST_EPOCHS)
    if patience == "auto":
        patience = max(math.ceil(max_steps / 10 / steps_per_epoch), LEAST_PATIENCE)
    return Limits(max_epochs, patience)


class OptimConfig(BaseModel):
    """How a head is trained. The defaults train on small data until dev stops improving.

    We differ from GLOT (section 4.1: Adam at 2e-4, batches of 32, two epochs), which is meant for tens of
    thousands of texts: on a few hundred, two epochs end before anything is learnt. Its setting is `lr:
    2.0e-4, max_epochs: 2, patience: null`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adam", "adamw"] = "adam"
    """Which optimiser; `adamw` decouples the decay from the rate."""
    lr: float = Field(default=2e-3, gt=0, allow_inf_nan=False)
    """Learning rate; the peak if `schedule` or `warmup` change it."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of the optimiser."""
    batch_size: int = Field(default=32, ge=1, le=MAX_STEPS)
    """Examples per step: texts, or pairs of texts."""
    max_epochs: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Maximum passes over train; which epoch is kept is chosen on dev. None: as many as begin within
    `max_steps`, but at least two."""
    max_steps: int = Field(default=3000, ge=1, le=MAX_STEPS)
    """Optimiser steps from which the number of epochs is derived if `max_epochs` is not given."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate decays after the warm-up, over the steps of the maximum number of epochs."""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps over which the rate rises linearly to `lr`."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """A larger gradient norm is clipped to this; None for no clipping."""
    patience: Annotated[int, Field(ge=1, le=MAX_STEPS)] | Literal["auto"] | None = "auto"
    """Training stops after this many epochs in a row without improvement on dev; None for never. `auto`: as
    many as make up a tenth of `max_steps`, but at least five."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of tokens, token graph and activations in training. Parameters, their gradients, the loss
    and every evaluation are float32."""

    def limits(self, n_examples: int) -> Limits:
        """The limits for this number of examples."""
        per_epoch = math.ceil(n_examples / self.batch_size)
        return limits_of(self.max_epochs, self.patience, self.max_steps, per_epoch)

    def for_examples(self, n_examples: int) -> OptimConfig:
        """The same config with its limits filled in."""
        n_epochs, patience = self.limits(n_examples)
        return self.model_copy(update={"max_epochs": n_epochs, "patience": patience})


def make_optimizer(
    config: OptimConfig, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Create the optimiser of a fit."""
    import torch

    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    # Fused: one kernel per parameter instead of a dozen small operations per step.
    return kinds[config.optimizer](
        parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
    )


def rate(config: OptimConfig, step: int, n_steps: int) -> float:
    """Learning rate of step `step`, from 0, of `n_steps`.

    No step is wasted on a rate of 0: the first of W warm-up steps has lr / W, and the last step of a
    linear decay over F steps lr / F.
    """
    warm = round(config.warmup * n_steps)
    if step < warm:
        return config.lr * (step + 1) / warm
    progress = (step - warm) / (n_steps - warm)
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - progress)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * progress)) / 2
