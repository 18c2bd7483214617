"""Models of texts with graphs, trained with the backbone in the loop: `kind: graph_text`.

All that does not depend on what is trained comes from feature stores: vectors of node labels (of a backbone
of their own, if one is named), of texts and queries, and of graphs in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import FEATURES, Input, Node, Resources
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import Method
from permafrost.flows.nodes.extraction import extract_node
from permafrost.flows.nodes.graphs import descriptions_node, graphs_input, graphs_of, labels_node
from permafrost.flows.nodes.reading import Reading, corpus_input, reading
from permafrost.flows.nodes.resuming import CHECKPOINT_EVERY_S, checkpoint_file
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.device import device_name
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.recipe import RecipeConfig
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.finetune.cases import require_cases
from permafrost.stages.finetune.config import FinetuneConfig, FinetuneOptim, FinetuneScoreConfig
from permafrost.stages.finetune.entering import entering_arrays
from permafrost.stages.finetune.losses.loss import GraphTextLossConfig, default_graph_text_loss
from permafrost.stages.finetune.model import GraphTextModelConfig, default_graph_text_model
from permafrost.stages.finetune.shown_cases import picked_cases
from permafrost.stages.finetune.token_place import (
    ReadAt,
    require_fits,
    require_room_for_token,
    state_array,
)
from permafrost.stages.finetune.tuning import TuningConfig, frozen_backbone, require_one_half
from permafrost.stages.graphs.views import Place
from permafrost.stages.metrics.records import Role
from permafrost.storage.artifacts import Draft
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader, open_reader

if TYPE_CHECKING:
    from permafrost.stages.finetune.data import FinetuneData
    from permafrost.stages.finetune.graph_batches import StoredRows

_LABELS, _DESCRIPTIONS, _TOKENS = "label_features", "description_features", "token_features"
_NODE_TEXTS = "node_text_features"


class NodeFeatures(BaseModel):
    """Where the features of node labels come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: BackboneConfig | None = None
    """A backbone of their own; None for the experiment's."""
    recipe: RecipeConfig = PlainRecipe()
    """How a label becomes input."""
    read: ReadAt = "mean"
    """How the states of a label become one vector: after the last block, and the final norm."""


class GraphTextMethod(Method):
    """A model of texts with graphs, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["graph_text"] = "graph_text"
    model: GraphTextModelConfig = Field(default_factory=default_graph_text_model)
    """What reads text and graph."""
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment: how the texts are read."""
    read: ReadAt = "last"
    """Where a text's vector is read."""
    nodes: NodeFeatures = NodeFeatures()
    """Where the features of node labels come from."""
    train: TuningConfig = Field(default_factory=frozen_backbone)
    """What of the backbone is trained: `probe` for nothing, or {kind: lora, ...}."""
    place: Place = "before"
    """Of a description, beside its text."""
    loss: GraphTextLossConfig | None = None
    """Goes with the kind of task; that of each task if not given."""
    optim: FinetuneOptim = FinetuneOptim()
    """How it is trained."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance."""
    graphs: Literal["true", "shuffled"] = "true"
    """`shuffled` is a control: every item has the graph of another one. What it reads of the text stays."""
    node_features: Literal["stored", "random"] = "stored"
    """`random` is a control: each node label has a vector of normal numbers. The edges stay."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with graphs if not given."""

    @model_validator(mode="after")
    def _describes_a_stage(self) -> GraphTextMethod:
        try:
            self.config("classification", 0)
        except ValidationError as error:
            reasons = [e["msg"].removeprefix("Value error, ") for e in error.errors()]
            raise ValueError("; ".join(reasons)) from error
        return self

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Those of its loss; without one all that have graphs."""
        kinds: tuple[TaskKind, ...] = ("multiple_choice", "classification", "unlabelled")
        return tuple(k for k in kinds if self.loss is None or k in self.loss.task_kinds)

    def fits(self, task: CorpusConfig) -> bool:
        """Tasks with graphs."""
        return task.has_graphs and super().fits(task)

    @property
    def draws_graphs(self) -> bool:
        """If the model reads any."""
        return self.model.reads_graphs

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """Weights and batches are drawn, unless nothing is trained on any task of its loss."""
        return not all(self.config(kind, 0).trains_nothing for kind in self.task_kinds)

    @property
    def tunes_backbone(self) -> bool:
        """If it trains one."""
        return self.train.changes_states

    def recipes(self) -> dict[str, str]:
        """Its own."""
        return {"": self.recipe}

    def single_store_recipes(self) -> tuple[str, ...]:
        """Texts have one vector."""
        return (self.recipe,)

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """One vector per text; what enters each block, if the graph token is computed from it."""
        return {self.recipe: (state_array(self.read, sizes), *self._token_arrays(sizes))}

    def _token_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        # The same for every task and seed.
        config = self.config("classification", 0)
        return entering_arrays(sizes) if config.reads_token_states else ()

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if labels, graphs or node features are not the true ones, or if it must be at chance."""
        is_false = (self.labels, self.graphs) != ("true", "true") or self.node_features == "random"
        return "control" if is_false or self.must_be_at_chance(task) else "method"

    def must_be_at_chance(self, task: CorpusConfig | None) -> bool:
        """With shuffled labels, with nothing of the text and the graph of another, and with one side alone
        where neither says anything without the other. With the graph of another it still has the text, and
        with random node features the graph's edges. Of a task of an evaluation (None) only vectors are
        read."""
        if self.labels == "shuffled":
            return task is not None
        model = self.model
        reads_text = model.reads_backbone or (model.reads_graphs and model.query_node == "stored")
        reads_graph = model.embeds_descriptions or (model.reads_graphs and self.graphs == "true")
        if reads_text and reads_graph:
            return False
        is_alone_at_chance = task is not None and task.surface_at_chance
        return is_alone_at_chance or not (reads_text or reads_graph)

    def loss_on(self, kind: TaskKind) -> str | None:
        """The given loss, or that of the kind of task; None where nothing is trained."""
        if self.config(kind, 0).trains_nothing:
            return None
        return (self.loss or default_graph_text_loss(kind)).kind

    def config(self, kind: TaskKind, seed: int) -> FinetuneConfig:
        """The complete config of one fine-tuning on a task of this kind."""
        shared = ("model", "read", "train", "optim", "labels", "graphs", "node_features")
        fields: dict[str, Any] = {name: getattr(self, name) for name in shared}
        loss = self.loss or default_graph_text_loss(kind)
        return FinetuneConfig(**fields, loss=loss, seed=seed)

    def _label_nodes(self, cell: Cell) -> tuple[Node, Node, ExtractTarget]:
        corpus = labels_node(cell.upstream.corpus_node(cell.task))
        base = cell.upstream.resolved(self.nodes.backbone)
        target = base.target(self.nodes.recipe, (state_array(self.nodes.read, base.sizes),))
        label = f"extract {cell.task} labels"
        return corpus, extract_node(target, corpus_input(corpus), label), target

    def _node_text_nodes(self, cell: Cell) -> tuple[Node, Node, ExtractTarget]:
        """The task's own texts, as the backbone of labels reads them."""
        corpus = cell.upstream.corpus_node(cell.task)
        base = cell.upstream.resolved(self.nodes.backbone)
        target = base.target(self.nodes.recipe, (state_array(self.nodes.read, base.sizes),))
        label = f"extract {cell.task} texts for nodes"
        return corpus, extract_node(target, corpus_input(corpus), label), target

    def _description_nodes(self, cell: Cell) -> tuple[Node, Node, ExtractTarget]:
        whole = cell.upstream.target(self.recipe)
        # Whatever else is read of texts, by this method or another.
        target = replace(whole, arrays=(state_array(self.read, whole.sizes),))
        corpus = descriptions_node(cell.upstream.corpus_node(cell.task), target, self.place)
        label = f"extract {cell.task} descriptions"
        return corpus, extract_node(target, corpus_input(corpus), label), target

    def further_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """Labels and descriptions, and their extractions, as far as the model reads them."""
        nodes: list[Node] = []
        if self.model.reads_graphs:
            nodes += self._label_nodes(cell)[:2]
        if self.model.text_of_readout == "nodes":
            nodes.append(self._node_text_nodes(cell)[1])
        if self.model.reads_descriptions:
            corpus, extraction, _ = self._description_nodes(cell)
            # Where the backbone is trained, what it makes of descriptions changes with every step.
            nodes += [corpus] if self.train.changes_states else [corpus, extraction]
        return tuple(nodes)

    def _readings(self, cell: Cell) -> tuple[list[Input], list[str], dict[str, Any]]:
        """Inputs, what has to be done before, and the run facts of a node that reads all features."""
        upstream = cell.upstream
        read = upstream.reading(self.recipe, (state_array(self.read, upstream.sizes),), cell.task)
        tokens = upstream.reading(self.recipe, self._token_arrays(upstream.sizes), cell.task)
        inputs = [graphs_input(upstream.corpus_node(cell.task)), *read.inputs]
        inputs += [i.model_copy(update={"name": _TOKENS}) for i in tokens.inputs]
        after = [*read.after]
        further: list[tuple[str, tuple[Node, Node, ExtractTarget], ReadAt]] = []
        if self.model.reads_graphs:
            further.append((_LABELS, self._label_nodes(cell), self.nodes.read))
        if self.model.text_of_readout == "nodes":
            further.append((_NODE_TEXTS, self._node_text_nodes(cell), self.nodes.read))
        if self.model.reads_descriptions:
            described = self._description_nodes(cell)
            if self.train.changes_states:
                inputs.append(corpus_input(described[0], f"{_DESCRIPTIONS}_corpus"))
            else:
                further.append((_DESCRIPTIONS, described, self.read))
        for name, (corpus, extraction, target), at in further:
            one = _reading(target, state_array(at, target.sizes), extraction)
            inputs += [i.model_copy(update={"name": name}) for i in one.inputs]
            inputs.append(corpus_input(corpus, f"{name}_corpus"))
            after += one.after
        return inputs, after, dict(read.run_facts)

    def _node(
        self,
        stage: type[Stage],
        cell: Cell,
        label: str,
        config: dict[str, Any],
        inputs: Sequence[Input],
    ) -> Node:
        features, after, run_facts = self._readings(cell)
        whole = self.config(cell.task_kind, cell.seed)
        kinds: list[object] = [whole]
        if whole.runs_backbone:
            use = cell.upstream.backbone(self.recipe)
            config = {**config, "backbone": use.key}
            run_facts |= use.run_facts
            kinds.append(use.recipe)
        return stage.node(
            f"{label} {cell.method} · {cell.task} · seed {cell.seed}",
            config,
            (*inputs, *features),
            kinds=kinds,
            run_facts={**run_facts, **cell.names},
            after=after,
            resources=Resources(backbone=whole.runs_backbone),
        )

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """One fine-tuning."""
        config = {"finetune": self.config(cell.task_kind, cell.seed)}
        return (self._node(Finetune, cell, "finetune", config, ()),)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """A trained model on dev and test."""
        model = Input(name="model", ref=fitted.id, loader=loaders.FINETUNED)
        drawn = cell.graphs_of if self.draws_graphs else ()
        config = {"score": FinetuneScoreConfig(graphs_of=drawn)}
        return self._node(ScoreFinetuned, cell, "score", config, (model,))


def _reading(target: ExtractTarget, array: str, extraction: Node) -> Reading:
    return reading([target.identity.store_id], [array], target.sizes, [extraction.id])


class Finetune(Stage):
    """Trains a graph-text model, with the backbone in the loop if the model runs it."""

    name = "finetune"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.finetune.train import finetune

        config = FinetuneConfig.model_validate(node.config["finetune"])
        data = _data(node, context, config)
        checkpoint = checkpoint_file(node, context)
        result = finetune(
            *(config, data, progress, _device(data, context), checkpoint, CHECKPOINT_EVERY_S)
        )
        result.save(draft.folder)
        draft.summary = {
            **{name: node.run_facts[name] for name in ("method", "task", "seed")},
            "dev": result.best.dev_metric,
            "epoch": result.best.epoch,
        }

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = FinetuneConfig.model_validate(node.config["finetune"])
        device_name(context.runtime.extract.device)
        if config.runs_backbone:
            target = context.bare_target(node)
            require_fits(target.recipe, target.sizes, config.model.token_place)
            config.train.require(target.sizes)
            config.train.require_precision(target.identity.compute_dtype)
            require_one_half(config.optim.precision, target.identity.compute_dtype)
        if context.is_known(node.input("graphs")):
            corpus = graphs_of(node, context)
            require_cases(config, corpus)
            if config.model.token_place is not None:
                target = context.bare_target(node)
                # Where no text can be too long there is nothing to count.
                if target.max_length >= target.sizes.max_positions:
                    encoded = target.encoded(list(corpus.texts))
                    require_room_for_token(encoded, corpus.texts, target.sizes)


class ScoreFinetuned(Stage):
    """Applies a trained graph-text model to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.finetune.score import score_finetuned

        tuned = context.load(node.input("model"))
        data = _data(node, context, tuned.config)
        config = FinetuneScoreConfig.model_validate(node.config["score"])
        result = score_finetuned(config, tuned, data, _device(data, context))
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = FinetuneScoreConfig.model_validate(node.config["score"])
        if config.graphs_of and context.is_known(node.input("graphs")):
            picked_cases(config, graphs_of(node, context))


def _device(data: FinetuneData, context: RunContext) -> str:
    """Where a model is trained: beside its backbone."""
    return context.device if data.live is None else str(data.live.backbone.device)


def _data(node: Node, context: RunContext, config: FinetuneConfig) -> FinetuneData:
    """Everything that a node's model reads."""
    from permafrost.stages.finetune.data import BackboneTexts, FinetuneData
    from permafrost.stages.finetune.graph_batches import ItemFeatures

    corpus = graphs_of(node, context)
    model, tunes = config.model, config.train.changes_states
    labels = descriptions = live = described = node_texts = None
    if model.reads_graphs:
        view = context.corpus(node.input(f"{_LABELS}_corpus"))
        labels = _rows(node, context, _LABELS, view.digests)
    if model.reads_descriptions:
        described = context.corpus(node.input(f"{_DESCRIPTIONS}_corpus"))
    if described is not None and not tunes:
        digests = [str(described.digests[t]) for t in _text_of_items(described)]
        descriptions = _rows(node, context, _DESCRIPTIONS, digests)
    if model.text_of_readout == "nodes":
        node_texts = _rows(node, context, _NODE_TEXTS, corpus.digests)
    vectors = _rows(node, context, "features", corpus.digests)
    entering = _entering(node, context, corpus.digests) if config.reads_token_states else None
    features = ItemFeatures(labels, vectors, descriptions, entering, node_texts)
    if config.runs_backbone:
        target, device = context.bare_target(node), context.runtime.extract.device
        texts = target.encoded(list(corpus.texts))
        if model.token_place is not None:
            require_room_for_token(texts, corpus.texts, target.sizes)
        shared = context.backbone
        backbone = (shared.own if tunes else shared.load)(target, device)
        live = BackboneTexts(
            backbone,
            target.recipe,
            texts,
            target.encoded(list(described.texts)).take(_text_of_items(described))
            if described is not None and tunes
            else None,
        )
    return FinetuneData(corpus, features, live)


def _text_of_items(descriptions: Corpus) -> NDArray[np.int64]:
    """The text of each item's description."""
    return descriptions.examples.column("text").to_numpy().astype(np.int64)


def _entering(node: Node, context: RunContext, digests: Sequence[str]) -> tuple[FeatureReader, ...]:
    """What enters each block, at every token of the input; all together within the memory of one reader."""
    places = [_place(i) for i in node.inputs_named(_TOKENS)]
    budget = context.runtime.memory_bytes // len(places)
    return tuple(
        open_reader(
            FeatureStore.open(store_folder(context.home, store)),
            array,
            digests,
            budget_bytes=budget,
            tokens="all",
        )
        for store, array in places
    )


def _place(source: Input) -> tuple[str, str]:
    """Store and array."""
    store, _, array = source.ref.removeprefix(FEATURES).partition("/")
    return store, array


def _rows(node: Node, context: RunContext, name: str, digests: Sequence[str]) -> StoredRows:
    """Vectors of texts, from the one array that a node reads under a name."""
    from permafrost.stages.finetune.graph_batches import StoredRows

    store, array = _place(node.input(name))
    opened = FeatureStore.open(store_folder(context.home, store))
    budget = context.runtime.memory_bytes
    return StoredRows(open_reader(opened, array, digests, budget_bytes=budget))
