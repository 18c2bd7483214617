"""How a head is trained: the optimiser, its rate over the steps, and when training ends early."""

import math
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_STEPS

LEAST_EPOCHS, LEAST_PATIENCE = 2, 5
"""Epochs, however many steps they have, where `max_epochs` and `patience` do not give them."""


class Limits(NamedTuple):
    """When training ends."""

    n_epochs: int
    """At most."""
    patience: int | None
    """Epochs in a row that are no better on dev; None where they do not end it."""


class OptimConfig(BaseModel):
    """How a head is trained. The defaults train small data until dev gets no better.

    We differ from GLOT (section 4.1: Adam at 2e-4, batches of 32, two epochs), which has tens of thousands of
    texts in mind: on a few hundred, two epochs end before anything is learnt. Its setting is `lr: 2.0e-4,
    max_epochs: 2, patience: null`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=2e-3, gt=0, allow_inf_nan=False)
    """Learning rate: the highest one where `schedule` or `warmup` change it."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=32, ge=1, le=MAX_STEPS)
    """Examples per step: texts, or pairs of texts."""
    max_epochs: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Passes over train, at most; the epoch that is kept is chosen on dev. None: as many as begin within
    `max_steps`, but two at least."""
    max_steps: int = Field(default=3000, ge=1, le=MAX_STEPS)
    """Steps of the optimiser by which epochs are counted where `max_epochs` is not given."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after the warm-up, over the steps of all epochs that there may be."""
    warmup: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the rate rises to `lr`, in equal parts."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The gradient of a step is scaled down to this norm if it is longer; None leaves it."""
    patience: Annotated[int, Field(ge=1, le=MAX_STEPS)] | Literal["auto"] | None = "auto"
    """Training ends after this many epochs in a row that are no better on dev; None never. `auto` is as many
    as make a tenth of `max_steps`, but five at least."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of tokens, token graph and activations in training. Parameters, their gradients, the loss and
    every evaluation are float32."""

    def limits(self, n_examples: int) -> Limits:
        """When training on so many examples ends."""
        per_epoch = math.ceil(n_examples / self.batch_size)
        n_epochs, patience = self.max_epochs, self.patience
        if n_epochs is None:
            n_epochs = max(math.ceil(self.max_steps / per_epoch), LEAST_EPOCHS)
        if patience == "auto":
            patience = max(math.ceil(self.max_steps / 10 / per_epoch), LEAST_PATIENCE)
        return Limits(n_epochs, patience)

    def for_examples(self, n_examples: int) -> "OptimConfig":
        """The same training with its limits written out."""
        n_epochs, patience = self.limits(n_examples)
        return self.model_copy(update={"max_epochs": n_epochs, "patience": patience})


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
