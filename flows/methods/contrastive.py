"""A pooling whose backbone is tuned by a contrastive loss: `kind: contrastive`.

Source: Value Aggregation, section 7, figure 4 and table 6 (Finetune-VA, Finetune-MP and attention-only
tuning). What the paper leaves open is LLM2Vec's, where its released code says it: rank 16, alpha 32, dropout
0.05, cosines times 50, 2e-4 after 300 steps. We differ in the loss, which also identifies the first text from
the second, as that of the heads does, and in the choice of the epoch on dev.
"""

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import METHODS, Method
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.capture import LayersText
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.finetune.tuned_head_config import TunedOptim
from permafrost.stages.finetune.tuning import TUNINGS, Tuning, TuningConfig
from permafrost.stages.fit.losses.loss import LOSSES, Loss, LossConfig
from permafrost.stages.metrics.records import Role


class ContrastiveOptim(TunedOptim):
    """How a backbone is tuned. There is no head, so `lr` is the rate of the backbone."""

    lr: float = Field(default=2e-4, gt=0, allow_inf_nan=False)
    """Learning rate of the backbone, the peak."""
    max_steps: int = Field(default=2000, ge=1, le=MAX_STEPS)
    """Optimiser steps from which the number of epochs is derived if `max_epochs` is not given."""
    warmup_steps: int | None = Field(default=300, ge=0, le=MAX_STEPS)
    """Steps over which the rate rises to `lr`."""

    @model_validator(mode="after")
    def _one_rate(self) -> "ContrastiveOptim":
        if self.backbone_lr is not None:
            raise ValueError(
                f"backbone_lr is {self.backbone_lr}, but a pooling has no head to be trained at "
                "another rate; give it as lr"
            )
        return self


def _adapters() -> Tuning:
    return TUNINGS.validate(
        {"kind": "lora", "r": 16, "alpha": 32, "dropout": 0.05, "targets": "without_keys"}
    )


def _cosine_times_50() -> Loss:
    return LOSSES.validate(
        {
            "kind": "contrastive",
            "similarity": "cosine",
            "temperature": 0.02,
            "hard_negatives": "add",
        }
    )


class ContrastiveTuning(Method):
    """A pooling without parameters and its backbone, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["contrastive"] = "contrastive"
    pooling: Literal["va", "mean"]
    """`va`: values over tokens and layers; `mean`: hidden states over tokens (and layers, if several)."""
    layers: LayersText | None = None
    """As in `capture`. Not given: the deep half of the blocks for `va`, and for `mean` the last states, after
    the final norm where there is one."""
    train: TuningConfig = Field(default_factory=_adapters)
    """What of the backbone is trained; `probe` for the pooling untuned."""
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment: how the texts are read."""
    optim: ContrastiveOptim = ContrastiveOptim()
    """How it is trained."""
    loss: LossConfig = Field(default_factory=_cosine_times_50)
    """Of pairs without labels; the cosine times 50 by default."""
    n_negatives: int | None = Field(default=1, ge=1, le=MAX_STEPS)
    """Hard negatives of each pair that are used, the first ones; None for all."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: first texts get the second ones of other pairs."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task that goes with the loss if not given."""

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Those that its loss is made for."""
        return self.loss.task_kinds

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """Weights and batches are drawn, where anything is trained."""
        return self.train.changes_states

    def recipes(self) -> dict[str, str]:
        """Its own."""
        return {"": self.recipe}

    def tuning(self) -> Tuning:
        """As given."""
        return self.train

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """What the last blocks run from, where they do; otherwise nothing that training needs."""
        return self._as_head(sizes).reads(sizes)

    def single_store_recipes(self) -> tuple[str, ...]:
        """One pass per text."""
        return (self.recipe,)

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if it is trained on shuffled pairs; what is untuned is a method to beat."""
        return "control" if self.labels == "shuffled" else "method"

    def loss_on(self, kind: TaskKind) -> str | None:
        """As given; none for a pooling that is not tuned."""
        return self.loss.kind if self.train.changes_states else None

    def layer(self, sizes: BackboneSizes) -> str:
        """What the mean is of, as `kind: finetuned` names it."""
        if self.pooling == "va":
            return f"values/{self.layers or 'half'}"
        last = "final" if sizes.has_final_norm else sizes.n_layers
        return f"hidden/{self.layers or last}"

    def _as_head(self, sizes: BackboneSizes) -> Method:
        """The same as a head without parameters that is trained with its backbone."""
        return METHODS.validate(
            {
                "kind": "finetuned",
                "head": {"kind": "mean"},
                "layer": self.layer(sizes),
                "train": self.train,
                "recipe": self.recipe,
                "optim": {**self.optim.model_dump(), "backbone_lr": self.optim.lr},
                "labels": self.labels,
                "loss": self.loss,
                "n_negatives": self.n_negatives,
            }
        )

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """One fine-tuning."""
        return self._as_head(cell.upstream.sizes).fit_nodes(cell)

    def score_node(self, cell: Cell, fitted: Node) -> Node | None:
        """The pooling of its backbone on dev and test."""
        return self._as_head(cell.upstream.sizes).score_node(cell, fitted)
