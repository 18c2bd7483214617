"""An MLP on the scores of heads that were trained alone (FREEZE!): `kind: layers_on_heads`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import Method
from permafrost.flows.nodes.latents import latents
from permafrost.flows.nodes.reading import arrays_of
from permafrost.flows.nodes.resuming import device_checkpoint
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.stage import Stage
from permafrost.stages.bounds import MAX_STEPS, MAX_WIDTH
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.freeze.config import Correlation, PairFitConfig
from permafrost.stages.freeze.graded import require_pairs
from permafrost.stages.freeze.layers_head import heads_with_vectors
from permafrost.stages.freeze.losses import PairLossConfig
from permafrost.stages.scoring.similarity import SimilarityConfig
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


class LayersOnHeadsMethod(Method):
    """An MLP on the scores of several heads of kind `layers`, each trained alone, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["layers_on_heads"] = "layers_on_heads"
    heads: tuple[str, ...] = Field(min_length=2)
    """Names of methods of kind `layers`, whose heads give a text a vector and which read one recipe; those
    with the same seed are read, and not trained further."""
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)
    """Width of the MLP's hidden layer."""
    label_range: tuple[float, float] = (0.0, 5.0)
    """Lowest and highest label; predictions lie between 0 and 1."""
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Of Adam."""
    batch_size: int = Field(default=128, ge=2, le=MAX_STEPS)
    """Pairs per step."""
    max_epochs: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Passes over train; which one is kept is chosen on dev."""
    loss: PairLossConfig = Field(default="mse", validate_default=True)
    """Of predicted similarities, given the gold ones."""
    metric: Correlation | None = None
    """Which correlation chooses the epoch on dev and is reported; if not given, the one that `metrics` of the
    experiment has for the task, and Pearson's where that has none, or `spearman_pearson`."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with graded pairs if not given."""

    @field_validator("heads")
    @classmethod
    def _are_different(cls, heads: tuple[str, ...]) -> tuple[str, ...]:
        for name in heads:
            if heads.count(name) > 1:
                raise ValueError(f"{name!r} is named twice; name different methods")
        return heads

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Graded pairs."""
        return ("similarity",)

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """Weights and batches are drawn, of the heads too."""
        return True

    @property
    def read_methods(self) -> tuple[str, ...]:
        """Those of the heads."""
        return self.heads

    def require_readable(self, others: dict[str, Method]) -> None:
        """Check that all are heads with a vector for a text, on one recipe of one backbone.

        Raises:
            ValueError: one is not.
        """
        read: set[tuple[str, str | None]] = set()
        for name, other in others.items():
            if (head := other.layers_head()) is None:
                raise ValueError(f"{name!r} is of kind {other.kind}; name methods of kind layers")
            if not head.has_vector:
                raise ValueError(
                    f"{name!r} has a head of kind {head.kind}, which has no code of one text; only "
                    f"{heads_with_vectors()} have"
                )
            if head.tries_layers:
                raise ValueError(
                    f"the grid of {name!r} tries latents.layers, so that what it reads is known only when it "
                    "is trained; name methods with layers of their own"
                )
            read.add((head.recipe, other.adapted_backbone))
        if len(read) > 1:
            raise ValueError("they read several recipes or backbones; name heads of one")

    def loss_on(self, kind: TaskKind) -> str:
        """As given."""
        return self.loss.kind

    def _built_on(self, cell: Cell) -> tuple[tuple[Input, ...], dict[str, Any], tuple[str, ...]]:
        """Corpus, features and heads; what running needs of them; and what has to be done first."""
        arrays: dict[str, list[str]] = {}
        fitted: list[Input] = []
        of: dict[str, Cell] = {}
        for name in self.heads:
            method, own = cell.upstream.cell(name, cell.task, cell.seed)
            head = method.layers_head()
            assert head is not None, "the experiment was checked for it"
            arrays[name], of[head.recipe] = list(head.arrays(cell.upstream.sizes)), own
            node = cell.upstream.fitted(name, cell.task, cell.seed)
            fitted.append(Input(name="single", ref=node.id, loader=loaders.PAIR_FIT))
        ((recipe, of_one),) = of.items()
        union = list(dict.fromkeys(a for own in arrays.values() for a in own))
        read = of_one.reading(recipe, union)
        inputs = (cell.corpus, *read.inputs, *fitted)
        return inputs, {**read.run_facts, "read": list(arrays.values())}, read.after

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """The MLP, trained on the train pairs of a task."""
        from permafrost.stages.freeze.cosine_mlp import CosineMlpHead

        inputs, run_facts, after = self._built_on(cell)
        config = PairFitConfig(
            head=CosineMlpHead(hidden=self.hidden),
            lr=self.lr,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            loss=self.loss,
            metric=self.metric or cell.correlation,
            evaluate_every=1,
            seed=cell.seed,
        )
        node = FitOnHeads.node(
            f"fit {cell.method} · {cell.task} · seed {cell.seed}",
            {"pairs": to_plain(config), "label_range": self.label_range, "read": run_facts["read"]},
            inputs,
            kinds=(config,),
            run_facts=run_facts,
            after=after,
        )
        return (node,)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """The MLP on dev and test."""
        inputs, run_facts, after = self._built_on(cell)
        head = Input(name="head", ref=fitted.id, loader=loaders.LAYERS_SCORE)
        return ScoreOnHeads.node(
            f"score {cell.method} · {cell.task} · seed {cell.seed}",
            {
                "similarity": to_plain(SimilarityConfig(metric=self.metric or cell.correlation)),
                "read": run_facts["read"],
            },
            (head, *inputs),
            run_facts={**run_facts, **cell.names},
            after=after,
        )


class FitOnHeads(Stage):
    """Trains an MLP on the cosines of the codes of trained heads."""

    name = "layers_on_heads"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.corpus import fit_corpus

        config = PairFitConfig.model_validate(node.config["pairs"])
        corpus, label_range = context.corpus(node.input("corpus")), _label_range(node)
        file = device_checkpoint(node, context)
        result = fit_corpus(
            *(config, _codes(node, context), corpus, label_range, None),
            *(progress, context.device, file),
        )
        result.save(draft.folder)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        require_pairs(context.corpus(node.input("corpus")), _label_range(node))


class ScoreOnHeads(Stage):
    """Applies it to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.corpus import score_corpus

        config = SimilarityConfig.model_validate(node.config["similarity"])
        corpus, folder = context.corpus(node.input("corpus")), context.open(node.input("head"))
        result = score_corpus(config, folder, _codes(node, context), corpus)
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)


def _label_range(node: Node) -> tuple[float, float]:
    low, high = node.config["label_range"]
    return float(low), float(high)


def _codes(node: Node, context: RunContext) -> np.ndarray:
    """Codes of the texts of a node's corpus `[n_texts, n_heads, width]`."""
    from permafrost.stages.freeze.pair_fit import load_pair_fit
    from permafrost.stages.freeze.single_codes import single_codes

    singles = node.inputs_named("single")
    heads = [load_pair_fit(context.open(source)).coder() for source in singles]
    arrays = arrays_of(node)
    places = [[arrays.index(array) for array in own] for own in node.config["read"]]
    return single_codes(heads, latents(node, context), places, context.device)
