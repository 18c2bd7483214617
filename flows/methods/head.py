"""Heads trained on cached features: `kind: head`."""

import shutil
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.methods.evaluating import Evaluate, EvaluatedMethod
from permafrost.flows.methods.method import Cell
from permafrost.flows.methods.reading import readers, width_of
from permafrost.flows.methods.summaries import score_summary
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.config import CorpusConfig
from permafrost.stages.encoder.vectors import HeadVectors
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit import (
    FitConfig,
    FitData,
    LossConfig,
    Metric,
    OptimConfig,
    fit,
    load_head,
    require_trainable,
)
from permafrost.stages.fit.losses import LOSS_OF
from permafrost.stages.heads import HeadConfig
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.score import ScoreConfig, score, scored_examples
from permafrost.storage.artifacts import Draft
from permafrost.storage.drafts import DRAFT_PREFIX
from permafrost.storage.progress import Progress

CHECKPOINT_EVERY_S = 15.0
"""Work that a killed fit loses, at most, beyond the epoch it was in."""


class HeadMethod(EvaluatedMethod, BaseModel):
    """A head trained on cached features, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["head"] = "head"
    head: HeadConfig
    layer: str
    """Stored array that the head reads, e.g. `hidden/6`."""
    optim: OptimConfig = OptimConfig()
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance."""
    grid: dict[str, tuple[JsonValue, ...]] = {}
    """Dotted field to candidate values; the best on dev is kept."""
    metric: Metric | None = None
    """What is compared on dev and reported; the task's own if not given."""
    loss: LossConfig | None = None
    """Goes with the kind of task: `cross_entropy` for classes, `cosine_mse` for graded pairs, `contrastive`
    for pairs without labels. Not given, it is that of each task with labels."""
    grid_patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task that goes with the loss if not given."""

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Those that its loss is made for; without one all that have labels."""
        if self.loss is None:
            return tuple(kind for kind in LOSS_OF if kind != "unlabelled")
        return tuple(kind for kind, loss in LOSS_OF.items() if loss == self.loss.kind)

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """Weights and batches are drawn."""
        return True

    def captured(self) -> tuple[str, ...]:
        """What any candidate reads."""
        return self.fit_config(self.task_kinds[0], "accuracy", 0).arrays()

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if it is trained on shuffled labels."""
        return "control" if self.labels == "shuffled" else "method"

    def loss_on(self, kind: TaskKind) -> str:
        """The given loss, or that of the kind of task."""
        return self.loss.kind if self.loss is not None else LOSS_OF[kind]

    def fit_config(self, kind: TaskKind, metric: Metric, seed: int) -> FitConfig:
        """The complete config of one fit on a task of this kind, whose own metric is given."""
        fields = {name: getattr(self, name) for name in FitConfig.model_fields if name != "seed"}
        fields["metric"] = self.metric or metric
        fields["loss"] = self.loss or {"kind": LOSS_OF[kind]}
        return FitConfig(**fields, seed=seed)

    def fit_node(self, cell: Cell) -> Node:
        """A head trained on the features of a task."""
        config = self.fit_config(cell.task_kind, cell.metric, cell.seed)
        read = cell.upstream.reading(DEFAULT_RECIPE, config.arrays(), cell.task)
        return FitHead.node(
            f"fit {cell.method} · {cell.task} · seed {cell.seed}",
            config,
            (cell.corpus, *read.inputs),
            run_facts=read.run_facts,
            after=read.after,
        )

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """A trained head on dev and test."""
        arrays = self.fit_config(cell.task_kind, cell.metric, cell.seed).arrays()
        read = cell.upstream.reading(DEFAULT_RECIPE, arrays, cell.task)
        head = Input(name="head", ref=fitted.id, loader=import_path(load_head))
        return ScoreHead.node(
            f"score {cell.method} · {cell.task} · seed {cell.seed}",
            ScoreConfig(),
            (head, cell.corpus, *read.inputs),
            run_facts={**read.run_facts, **cell.names},
            after=read.after,
        )

    def recipes(self) -> dict[str, str]:
        """The experiment's own."""
        return {"": DEFAULT_RECIPE}

    def evaluated_by(self) -> type[Evaluate]:
        """With what was fitted, if anything was."""
        return EvaluateHead

    def fitted_because(self) -> str:
        """It is trained."""
        return "is trained"

    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What any candidate reads."""
        return self.captured()

    def vector_identity(self) -> str:
        """What was fitted says it all."""
        return "head"

    def fitted_loader(self) -> object:
        """Reads a trained head."""
        return load_head


class FitHead(Stage):
    """Trains a head, or a grid of them."""

    name = "fit"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        config = FitConfig.model_validate(node.config)
        data = fit_data(node, context, readers(node, context, config.arrays()))
        # By the artifact's key, which code is part of; a draft, so that it stays on this machine and
        # garbage collection finds what a killed run left.
        kept = context.artifacts.root / cls.name / f"{DRAFT_PREFIX}{node.ref.key}-checkpoint"
        result = fit(config, data, progress, context.device, kept / "fit.pt", CHECKPOINT_EVERY_S)
        result.save(draft.folder)
        shutil.rmtree(kept, ignore_errors=True)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = FitConfig.model_validate(node.config)
        for candidate in config.candidates():
            candidate.head.require_width(width_of(node, candidate.layer))
        data = fit_data(node, context, {})
        require_trainable(config, data)
        scored_examples(data)


class ScoreHead(Stage):
    """Applies a trained head to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        head = context.load(node.input("head"))
        data = fit_data(node, context, readers(node, context, [head.layer]))
        result = score(ScoreConfig.model_validate(node.config), head, data, context.device)
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)


class EvaluateHead(Evaluate):
    """Scores a trained head on an evaluation task."""

    @classmethod
    def vectors(cls, node: Node, context: RunContext) -> HeadVectors:
        vectors = HeadVectors(context.load(node.input("fitted")))
        vectors.module.to(context.device)
        return vectors


def fit_data(node: Node, context: RunContext, opened: dict[str, Any]) -> FitData:
    """The corpus of a node with the features that were opened."""
    corpus = context.corpus(node.input("corpus"))
    return FitData(opened, corpus.examples, corpus.label_names, corpus.digests, corpus.task)
