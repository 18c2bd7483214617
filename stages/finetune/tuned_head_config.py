"""The config of a head that is trained together with its backbone, and the examples that it gets."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.finetune.tuning import TuningConfig, frozen_backbone
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import FitData
from permafrost.stages.fit.optim import OptimConfig
from permafrost.stages.fit.splits import Splits, require_fitting, require_negatives, splits
from permafrost.storage.errors import InputError


class TunedOptim(OptimConfig):
    """How a head and its backbone are trained. The head's rate is `lr`."""

    optimizer: Literal["adam", "adamw"] = "adamw"
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    max_steps: int = Field(default=1000, ge=1, le=MAX_STEPS)
    warmup_steps: int | None = Field(default=None, ge=0, le=MAX_STEPS)
    """Steps over which the rates rise, in place of `warmup`, their share of all steps."""
    max_grad_norm: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    backbone_lr: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Learning rate of the backbone's weights, which follows the schedule too; that which is usual for what
    is trained if not given."""
    at_a_time: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Texts that are computed at a time, with the gradients of the whole batch: the others wait as encodings
    only. None: the whole batch, until one does not fit in memory. Of no use to heads with batch
    normalisation, whose statistics would be those of a part."""
    activations: Literal["kept", "recomputed"] = "kept"
    """`recomputed`: those of the backbone's blocks are computed again on the way back (gradient
    checkpointing)."""

    @model_validator(mode="after")
    def _one_warmup(self) -> "TunedOptim":
        if self.warmup_steps is not None and self.warmup:
            raise ValueError(
                f"warmup is {self.warmup} (a share of the steps) and warmup_steps {self.warmup_steps}; give "
                "one of them"
            )
        return self

    def for_examples(self, n_examples: int) -> "TunedOptim":
        """The same with its limits filled in, and the warm-up as a share of the steps.

        Raises:
            InputError: training ends before the warm-up does.
        """
        n_epochs, patience = self.limits(n_examples)
        limited = {"max_epochs": n_epochs, "patience": patience}
        if self.warmup_steps is None:
            return self.model_copy(update=limited)
        n_steps = n_epochs * -(-n_examples // self.batch_size)
        if self.warmup_steps >= n_steps:
            raise InputError(
                f"optim.warmup_steps is {self.warmup_steps}, but training has at most {n_steps} steps "
                f"({n_epochs} epochs of {n_examples} examples in batches of {self.batch_size}), so that the "
                "rate would never get to optim.lr; use fewer, or more epochs"
            )
        share = self.warmup_steps / n_steps
        return self.model_copy(update={**limited, "warmup": share, "warmup_steps": None})


class TunedHeadConfig(BaseModel):
    """One head on one array of a backbone that is trained with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fit: FitConfig
    """The head and its task; its `optim` is not used."""
    train: TuningConfig = Field(default_factory=frozen_backbone)
    optim: TunedOptim = TunedOptim()
    n_negatives: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Hard negatives of each example that are used, the first ones, where the loss adds them; None: all."""

    @property
    def fitted(self) -> FitConfig:
        """`fit` with the training that it gets."""
        optim = {name: getattr(self.optim, name) for name in OptimConfig.model_fields}
        return self.fit.model_copy(update={"optim": OptimConfig(**optim)})


def prepared(config: TunedHeadConfig, data: FitData) -> tuple[TunedHeadConfig, Splits]:
    """The config with its limits filled in, and the train and dev examples; needs no features.

    Raises:
        InputError: there are no train or dev examples, nothing to learn, no hard negatives where the loss
            adds them, a loss or metric of another kind of task, or a warm-up longer than the training.
    """
    require_fitting(config.fitted, data)
    train, dev = splits(config.fit.seed, config.fit.labels, data)
    require_negatives(config.fit, train)
    limited = config.model_copy(update={"optim": config.optim.for_examples(len(train))})
    whole = limited.model_copy(update={"fit": limited.fitted})
    return whole, (train.with_negatives(config.n_negatives), dev)
