"""Heads trained together with their backbone: `kind: finetuned`.

Every pass runs the backbone: all of it, or its last blocks, which a stored layer is fed to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, Resources
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.evaluated import EvaluatedMethod
from permafrost.flows.methods.head import fit_data
from permafrost.flows.nodes.evaluating import Evaluate
from permafrost.flows.nodes.reading import Reading, readers
from permafrost.flows.nodes.resuming import CHECKPOINT_EVERY_S, checkpoint_file
from permafrost.flows.nodes.summaries import base_summary, score_summary
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.device import device_name
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.finetune.entering import entering_array, require_above
from permafrost.stages.finetune.read_arrays import arrays_of
from permafrost.stages.finetune.token_place import require_fits
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig, TunedOptim, prepared
from permafrost.stages.finetune.tuning import Tuning, TuningConfig, require_one_half
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.losses.loss import LossConfig, default_loss
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.heads import HeadConfig
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.scored import ScoreConfig, scored_examples
from permafrost.storage.artifacts import Draft
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.stages.encoder.tuned import TunedVectors
    from permafrost.stages.extraction.backbone import Backbone
    from permafrost.stages.finetune.cached_below import CachedBelow
    from permafrost.stages.finetune.live_reader import LiveReader
    from permafrost.stages.finetune.tuned_head import TunedHeadResult


class FinetunedHead(EvaluatedMethod):
    """A head and its backbone, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["finetuned"] = "finetuned"
    head: HeadConfig
    """What is trained on top of the backbone."""
    layer: str
    """The array that the head reads, e.g. `hidden/6`, or several, such as `values/half`, whose rows are
    averaged; what lies behind it does not run."""
    train: TuningConfig
    """What of the backbone is trained: probe, lora, full, last_blocks."""
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment: how the texts are read."""
    optim: TunedOptim = TunedOptim()
    """How both are trained."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance, but for graded pairs (cosines)."""
    metric: Metric | None = None
    """What is compared on dev and reported; the task's own if not given."""
    loss: LossConfig | None = None
    """Goes with the kind of task; that of each task if not given."""
    n_negatives: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Hard negatives of each example that are used, the first ones, where the loss adds them; all if not
    given."""
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

    def tuning(self) -> Tuning:
        """As given."""
        return self.train

    def recipes(self) -> dict[str, str]:
        """Its own."""
        return {"": self.recipe}

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """What enters the first block that runs, if that is stored; otherwise nothing that training needs:
        the report asks a store for the tokens of texts, and this array is the smallest."""
        self.train.require(sizes)
        n_blocks = self.train.n_above_cache
        if n_blocks is None:
            return {self.recipe: ("pooled/hidden_last/0",)}
        for name in arrays_of(self.layer, sizes):
            require_above(n_blocks, name.text, sizes)
        return {self.recipe: (entering_array(n_blocks, sizes),)}

    def single_store_recipes(self) -> tuple[str, ...]:
        """One pass per text."""
        return (self.recipe,)

    def role_on(self, task: object) -> Role:
        """A control if it is trained on shuffled labels."""
        return "control" if self.labels == "shuffled" else "method"

    def loss_on(self, kind: TaskKind) -> str | None:
        """The given loss, or that of the kind of task; none where there is nothing to train."""
        if kind == "unlabelled" and not self.head.trains and not self.train.changes_states:
            return None
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
        return TunedHeadConfig(
            fit=fit, train=self.train, optim=self.optim, n_negatives=self.n_negatives
        )

    def _below(self, cell: Cell) -> Reading:
        if self.train.n_above_cache is None:
            return Reading((), (), {})
        arrays = self.reads(cell.upstream.sizes)[self.recipe]
        return cell.upstream.reading(self.recipe, arrays, cell.task)

    def _node(
        self,
        stage: type[Stage],
        cell: Cell,
        label: str,
        config: dict[str, Any],
        inputs: Sequence[Input],
    ) -> Node:
        use = cell.upstream.backbone(self.recipe)
        read = self._below(cell)
        return stage.node(
            f"{label} {cell.method} · {cell.task} · seed {cell.seed}",
            {**config, "backbone": use.key},
            (*inputs, cell.corpus, *read.inputs),
            kinds=[self.config(cell), use.recipe],
            run_facts={**read.run_facts, **use.run_facts, **cell.names},
            after=read.after,
            resources=Resources(backbone=True),
        )

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """One fine-tuning."""
        return (self._node(FinetuneHead, cell, "finetune", {"finetune": self.config(cell)}, ()),)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """The head and its backbone on dev and test."""
        tuned = Input(name="head", ref=fitted.id, loader=loaders.TUNED_HEAD)
        # The report has the tokens of the experiment's own recipe alone.
        is_own = self.recipe == DEFAULT_RECIPE
        config = ScoreConfig() if is_own else ScoreConfig(n_weight_texts=0)
        return self._node(ScoreTunedHead, cell, "score", {"score": config}, (tuned,))

    def without_vector(self) -> str | None:
        """One array at a time is read of a store."""
        try:
            ArrayName.parse(self.layer)
        except InputError:
            return (
                f"which reads {quoted(self.layer)}, several arrays at once; name the backbone that it leaves "
                "in 'adapted', and evaluate a method of kind embed on that"
            )
        return None

    def evaluated_by(self) -> type[Evaluate]:
        """With the head, on what its backbone makes of texts."""
        return EvaluateTunedHead

    def fitted_because(self) -> str:
        """It is trained."""
        return "is trained"

    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What the head reads."""
        return (self.layer,)

    def vector_identity(self) -> str:
        """What was fitted says it all."""
        return "head"

    def fitted_loader(self) -> object:
        """Reads a head that was trained with its backbone."""
        return loaders.TUNED_HEAD


class FinetuneHead(Stage):
    """Trains a head with its backbone."""

    name = "finetune"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.finetune.tuned_head import finetune_head
        from permafrost.stages.finetune.tuned_head_files import save_tuned_head

        config = TunedHeadConfig.model_validate(node.config["finetune"])
        target, device = context.bare_target(node), context.runtime.extract.device
        shared = context.backbone
        backbone = (shared.own if config.train.changes_states else shared.load)(target, device)
        below = _below(node, context, config, backbone)
        reader = _reader(node, context, target, backbone, config.fit.layer, below)
        data = fit_data(node, context, {reader.array: reader})
        result = finetune_head(
            *(config, data, reader, progress, str(backbone.device)),
            *(checkpoint_file(node, context), CHECKPOINT_EVERY_S),
        )
        save_tuned_head(result, draft.folder)
        best = result.fit.best
        draft.summary = {
            **{name: node.run_facts[name] for name in ("method", "task", "seed")},
            "dev": best.dev_metric,
            "epoch": best.epoch,
            **_counts(result),
            **base_summary(node),
        }

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = TunedHeadConfig.model_validate(node.config["finetune"])
        device_name(context.runtime.extract.device)
        target = context.bare_target(node)
        require_fits(target.recipe, target.sizes, None)
        config.train.require(target.sizes)
        config.train.require_precision(target.identity.compute_dtype)
        require_one_half(config.optim.precision, target.identity.compute_dtype)
        first, *_ = arrays_of(config.fit.layer, target.sizes)
        config.fit.head.require_width(first.width(target.sizes))
        data = fit_data(node, context, {})
        prepared(config, data)
        scored_examples(data)


class ScoreTunedHead(Stage):
    """Applies a head and its backbone to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.scoring.score import score

        tuned = context.load(node.input("head"))
        target, device = context.bare_target(node), context.runtime.extract.device
        backbone = context.backbone.own(target, device)
        tuned.tune(backbone)
        below = _below(node, context, tuned.config, backbone)
        reader = _reader(node, context, target, backbone, tuned.head.layer, below)
        data = fit_data(node, context, {reader.array: reader})
        config = ScoreConfig.model_validate(node.config["score"])
        result = score(config, tuned.head, data, str(backbone.device))
        result.metrics["n_parameters"] += tuned.n_backbone_parameters
        result.metrics["choice"] |= tuned.choice
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)


class EvaluateTunedHead(Evaluate):
    """Scores a head on an evaluation task, on stored rows of the backbone that was trained with it."""

    @classmethod
    def vectors(cls, node: Node, context: RunContext) -> TunedVectors:
        from permafrost.stages.encoder.tuned import TunedVectors

        tuned = context.load(node.input("fitted"))
        vectors = TunedVectors(tuned.head, tuned.n_backbone_parameters)
        vectors.module.to(context.device)
        return vectors


def _below(
    node: Node, context: RunContext, config: TunedHeadConfig, backbone: Backbone
) -> CachedBelow | None:
    """The stored states that the last blocks run from, if they do; the backbone then forgets the others."""
    from permafrost.stages.finetune.cached_below import CachedBelow, forget_below

    n_blocks = config.train.n_above_cache
    if n_blocks is None:
        return None
    (reader,) = readers(node, context, tokens="all").values()
    forget_below(backbone, n_blocks)
    return CachedBelow(n_blocks, reader)


def _counts(result: TunedHeadResult) -> dict[str, float]:
    """How much of what is trained of the backbone got a gradient: of adapters on every block, it is also the
    ratio to a head that reads what the last block gives out."""
    if not result.n_tuned:
        return {}
    return {
        "n_tuned": result.n_tuned,
        "n_with_gradient": result.n_reached,
        "share_with_gradient": round(result.n_reached / result.n_tuned, 4),
    }


def _reader(
    node: Node,
    context: RunContext,
    target: ExtractTarget,
    backbone: Backbone,
    layer: str,
    below: CachedBelow | None,
) -> LiveReader:
    """The texts of a node's corpus, computed by a backbone."""
    from permafrost.stages.finetune.live_reader import LiveReader

    texts = list(context.corpus(node.input("corpus")).texts)
    encoded = target.encoded(texts)
    return LiveReader(backbone, target.recipe, encoded, layer, below)
