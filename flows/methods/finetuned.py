"""Heads trained together with their backbone: `kind: finetuned`.

Every pass runs the backbone; nothing is read from a feature store.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, Resources, import_path
from permafrost.flows.methods.head import fit_data
from permafrost.flows.methods.method import Cell, Method
from permafrost.flows.nodes.resuming import CHECKPOINT_EVERY_S, checkpoint_file
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.extraction.backbone import Backbone, choose_device
from permafrost.stages.extraction.capture import ArrayName, CaptureItem
from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.finetune.backbone_pass import require_fits
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.tuned_head import TunedHeadConfig, TunedOptim, finetune_head
from permafrost.stages.finetune.tuned_head_files import load_tuned_head, save_tuned_head
from permafrost.stages.finetune.tuning import TuningConfig
from permafrost.stages.fit import FitConfig, LossConfig, Metric, require_trainable
from permafrost.stages.fit.losses.loss import default_loss
from permafrost.stages.heads import HeadConfig
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.score import ScoreConfig, score, scored_examples
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class FinetunedHead(Method):
    """A head and its backbone, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["finetuned"] = "finetuned"
    head: HeadConfig
    layer: str
    """The array that the head reads, e.g. `hidden/6`; blocks behind it do not run."""
    train: TuningConfig
    """What of the backbone is trained: probe, lora, full, last_blocks."""
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment: how the texts are read."""
    optim: TunedOptim = TunedOptim()
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance."""
    metric: Metric | None = None
    """What is compared on dev and reported; the task's own if not given."""
    loss: LossConfig | None = None
    """Goes with the kind of task; that of each task if not given."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task that goes with the loss if not given."""

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Those that its loss is made for; without one all that have labels."""
        if self.loss is None:
            return ("classification", "pair_classification", "similarity")
        return self.loss.task_kinds

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """Weights and batches are drawn."""
        return True

    def recipes(self) -> dict[str, str]:
        """Its own."""
        return {"": self.recipe}

    def single_store_recipes(self) -> tuple[str, ...]:
        """One pass per text."""
        return (self.recipe,)

    def role_on(self, task: object) -> Role:
        """A control if it is trained on shuffled labels."""
        return "control" if self.labels == "shuffled" else "method"

    def loss_on(self, kind: TaskKind) -> str:
        """The given loss, or that of the kind of task."""
        return (self.loss or default_loss(kind)).kind

    def config(self, cell: Cell) -> TunedHeadConfig:
        """One fine-tuning on a task with a seed."""
        fit = FitConfig(
            head=self.head,
            layer=self.layer,
            loss=self.loss or default_loss(cell.task_kind),
            metric=self.metric or cell.metric,
            labels=self.labels,
            seed=cell.seed,
        )
        return TunedHeadConfig(fit=fit, train=self.train, optim=self.optim)

    def _node(
        self,
        stage: type[Stage],
        cell: Cell,
        label: str,
        config: dict[str, Any],
        inputs: Sequence[Input],
    ) -> Node:
        use = cell.upstream.backbone(self.recipe)
        return stage.node(
            f"{label} {cell.method} · {cell.task} · seed {cell.seed}",
            {**config, "backbone": use.key},
            (*inputs, cell.corpus),
            kinds=[self.config(cell), use.recipe],
            run_facts={**use.run_facts, **cell.names},
            resources=Resources(backbone=True),
        )

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """One fine-tuning."""
        return (self._node(FinetuneHead, cell, "finetune", {"finetune": self.config(cell)}, ()),)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """The head and its backbone on dev and test."""
        tuned = Input(name="head", ref=fitted.id, loader=import_path(load_tuned_head))
        return self._node(ScoreTunedHead, cell, "score", {"score": ScoreConfig()}, (tuned,))


class FinetuneHead(Stage):
    """Trains a head with its backbone."""

    name = "finetune"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        config = TunedHeadConfig.model_validate(node.config["finetune"])
        target, device = context.bare_target(node), context.runtime.extract.device
        shared = context.backbone
        backbone = (shared.own if config.train.changes_states else shared.load)(target, device)
        reader = _reader(node, context, target, backbone, config.fit.layer)
        data = fit_data(node, context, {reader.array: reader})
        with checkpoint_file(node, context) as checkpoint:
            result = finetune_head(
                *(config, data, reader, progress, str(backbone.device)),
                *(checkpoint, CHECKPOINT_EVERY_S),
            )
            save_tuned_head(result, draft.folder)
        best = result.fit.best
        draft.summary = {
            **{name: node.run_facts[name] for name in ("method", "task", "seed")},
            "dev": best.dev_metric,
            "epoch": best.epoch,
        }

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = TunedHeadConfig.model_validate(node.config["finetune"])
        choose_device(context.runtime.extract.device)
        target = context.bare_target(node)
        require_fits(target.recipe, target.sizes, None)
        config.train.require(target.sizes)
        name = ArrayName.parse(config.fit.layer)
        CaptureItem(what=name.what, layers=str(name.index)).names(target.sizes)
        config.fit.head.require_width(name.width(target.sizes))
        data = fit_data(node, context, {})
        require_trainable(config.fit, data)
        scored_examples(data)


class ScoreTunedHead(Stage):
    """Applies a head and its backbone to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        tuned = context.load(node.input("head"))
        target, device = context.bare_target(node), context.runtime.extract.device
        backbone = context.backbone.own(target, device)
        tuned.tune(backbone)
        reader = _reader(node, context, target, backbone, tuned.head.layer)
        data = fit_data(node, context, {reader.array: reader})
        config = ScoreConfig.model_validate(node.config["score"])
        result = score(config, tuned.head, data, str(backbone.device))
        result.metrics["n_parameters"] += tuned.n_backbone_parameters
        result.metrics["choice"] |= tuned.choice
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)


def _reader(
    node: Node, context: RunContext, target: ExtractTarget, backbone: Backbone, layer: str
) -> LiveReader:
    """The texts of a node's corpus, computed by a backbone."""
    texts = list(context.corpus(node.input("corpus")).texts)
    encoded = encode(target.recipe, target.tokenizer, texts, target.max_length)
    return LiveReader(backbone, target.recipe, encoded, layer)
