"""How a head is trained: the optimiser, its rate over the steps, and when training ends early."""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from stages.bounds import MAX_STEPS


class OptimConfig(BaseModel):
    """How a head is trained. The defaults are GLOT's (section 4.1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=2e-4, gt=0, allow_inf_nan=False)
    """Learning rate: the highest one where `schedule` or `warmup` change it."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=32, ge=1, le=MAX_STEPS)
    """Examples per step: texts, or pairs of texts."""
    max_epochs: int = Field(default=2, ge=1, le=MAX_STEPS)
    """Passes over train; the epoch that is kept is chosen on dev."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after the warm-up, over the steps of all `max_epochs`."""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the rate rises to `lr`, in equal parts."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The gradient of a step is scaled down to this norm if it is longer; None leaves it."""
    patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Training ends after this many epochs in a row that are no better on dev; None never."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of tokens, token graph and activations in training. Parameters, their gradients, the loss and
    every evaluation are float32."""


def make_optimizer(
    config: OptimConfig, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimiser of a fit."""
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    # Fused: one pass over each parameter instead of a dozen small operations per step.
    return kinds[config.optimizer](
        parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
    )


def rate(config: OptimConfig, step: int, n_steps: int) -> float:
    """Learning rate of step `step`, from 0, of `n_steps`.

    No step is wasted on a rate of 0: the first of W warm-up steps has lr / W, and the last step of a
    linear fall over F steps lr / F.
    """
    warm = round(config.warmup * n_steps)
    if step < warm:
        return config.lr * (step + 1) / warm
    fallen = (step - warm) / (n_steps - warm)
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - fallen)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * fallen)) / 2
