"""Heads trained on cached features: `kind: head`."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.methods.cell import CHOSEN, Cell
from permafrost.flows.methods.evaluated import EvaluatedMethod
from permafrost.flows.methods.method import TokenHead
from permafrost.flows.nodes.evaluating import Evaluate
from permafrost.flows.nodes.reading import readers, width_of
from permafrost.flows.nodes.resuming import CHECKPOINT_EVERY_S, checkpoint_file
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.same_training import require_same_training
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit.candidates import arrays, candidates
from permafrost.stages.fit.choice import STAGE as CHOOSE
from permafrost.stages.fit.choice import bar_after, choose
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import FitData
from permafrost.stages.fit.losses.loss import LossConfig, default_loss
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.fit.optim import OptimConfig
from permafrost.stages.fit.splits import require_trainable
from permafrost.stages.heads.head import HeadConfig
from permafrost.stages.heads.matching import require_widths_of_a_grid
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.scored import ScoreConfig, scored_examples
from permafrost.storage.artifacts import Draft
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress

if TYPE_CHECKING:
    from permafrost.stages.encoder.vectors import HeadVectors


class HeadMethod(EvaluatedMethod):
    """A head trained on cached features, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["head"] = "head"
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment. What is read under another recipe than the experiment's own is extracted
    without being named in `capture`, and the report has no token weights of it."""
    head: HeadConfig
    """What is trained on the stored features."""
    layer: str
    """Stored array that the head reads, e.g. `hidden/6`; `hidden/last` is that behind the final norm, or
    behind the last block where there is none."""
    optim: OptimConfig = OptimConfig()
    """How it is trained."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance, but for graded pairs (cosines)."""
    grid: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Dotted field to candidate values; the best on dev is kept. Every combination is a fit of its own."""
    metric: Metric | None = None
    """What is compared on dev and reported; the task's own if not given."""
    loss: LossConfig | None = None
    """Goes with the kind of task: `cross_entropy` for classes, `cosine_mse` for graded pairs, `contrastive`
    for pairs without labels, which no head reads unless it is given. Not given, it is that of each task with
    labels."""
    grid_patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """A candidate ends after this many epochs if none of them beats, on dev, every epoch of the candidates
    before it. They are trained one after the other then, and a new one trains those after it again."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task that goes with the loss if not given."""
    normalise: Literal["none", "l2"] = "none"
    """`l2` divides each vector by its length where an evaluation reads it. Training and the scores on the
    head's own tasks do not depend on it. GLOT's released code has `l2` for mteb."""
    backbone: str | None = None
    """Name of an adapted backbone to read in place of the experiment's; see `adapted`."""

    @model_validator(mode="after")
    def _grid_is_of_the_fit(self) -> "HeadMethod":
        try:
            require_widths_of_a_grid(self.grid)
            self.candidates(self.task_kinds[0], "accuracy", 0)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

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
    def adapted_backbone(self) -> str | None:
        """As given."""
        return self.backbone

    @property
    def is_random(self) -> bool:
        """Weights and batches are drawn."""
        return True

    def token_head(self) -> TokenHead:
        """Its own."""
        return TokenHead(self.recipe, bool(self.grid), self.fit_config, self.candidates)

    @property
    def fits_other_test_sets(self) -> bool:
        """A head reads any texts."""
        return True

    def captured(self) -> tuple[str, ...]:
        """What any candidate reads, if that is under the experiment's own recipe."""
        return self._arrays() if self.recipe == DEFAULT_RECIPE else ()

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """What any candidate reads, if that is under another recipe."""
        return {} if self.recipe == DEFAULT_RECIPE else {self.recipe: self._arrays()}

    def single_store_recipes(self) -> tuple[str, ...]:
        """Its recipe, whose tokens it reads."""
        return () if self.recipe == DEFAULT_RECIPE else (self.recipe,)

    def _arrays(self) -> tuple[str, ...]:
        return arrays(self.candidates(self.task_kinds[0], "accuracy", 0))

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if it is trained on shuffled labels."""
        return "control" if self.labels == "shuffled" else "method"

    def loss_on(self, kind: TaskKind) -> str:
        """The given loss, or that of the kind of task."""
        return (self.loss or default_loss(kind)).kind

    def fit_config(self, kind: TaskKind, metric: Metric, seed: int) -> FitConfig:
        """One fit on a task of this kind, whose own metric is given, without the grid."""
        fields = {name: getattr(self, name) for name in FitConfig.model_fields if name != "seed"}
        fields["metric"] = self.metric or metric
        fields["loss"] = self.loss or default_loss(kind)
        return FitConfig(**fields, seed=seed)

    def candidates(self, kind: TaskKind, metric: Metric, seed: int) -> dict[str, FitConfig]:
        """All fits that are chosen from, by what tells them apart; the only one under "".

        Raises:
            InputError: see `stages.fit.candidates`.
        """
        return candidates(self.fit_config(kind, metric, seed), self.grid)

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """A head for each candidate of the grid, and the choice among them."""
        label = f"{cell.method} · {cell.task} · seed {cell.seed}"
        fits: list[Node] = []
        for name, config in self.candidates(cell.task_kind, cell.metric, cell.seed).items():
            read = cell.reading(self.recipe, (config.layer,))
            waits = config.grid_patience is not None
            before = [_input("before", fits[-1], bar_after)] if waits else []
            fits.append(
                FitHead.node(
                    f"fit {label} · {name}" if name else f"fit {label}",
                    config,
                    (cell.corpus, *read.inputs, *before),
                    run_facts=read.run_facts,
                    after=read.after,
                )
            )
        if len(fits) == 1:
            return tuple(fits)
        chosen = [_input("candidate", fit, loaders.HEAD) for fit in fits]
        return *fits, ChooseHead.node(f"choose {label}", {}, chosen)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """A trained head on dev and test."""
        layers = arrays(self.candidates(cell.task_kind, cell.metric, cell.seed))
        read = cell.reading(self.recipe, layers)
        # The report has the tokens of the experiment's own recipe alone.
        is_own = self.recipe == DEFAULT_RECIPE
        trained = [] if cell.fitted_on is None else [cell.upstream.corpus(cell.fitted_on)]
        chosen: list[Input] = []
        filled = read.after
        weighs = any(ArrayName.parse(layer).axis == "token" for layer in layers)
        # On further test sets the head has the weights that it has on the task of its fit.
        is_shown = weighs and is_own and self.backbone is None and cell.fitted_on is None
        if cell.weights_of is not None and is_shown:
            chosen.append(cell.upstream.corpus(cell.weights_of))
            filled += cell.upstream.reading(self.recipe, (), cell.weights_of).after
        return ScoreHead.node(
            f"score {cell.method} · {cell.task} · seed {cell.seed}",
            ScoreConfig() if is_own else ScoreConfig(n_weight_texts=0),
            (
                *(_input("head", fitted, loaders.HEAD), cell.corpus, *read.inputs),
                *(corpus.model_copy(update={"name": "trained_on"}) for corpus in trained),
                *(corpus.model_copy(update={"name": CHOSEN}) for corpus in chosen),
            ),
            run_facts={**read.run_facts, **cell.names},
            after=tuple(dict.fromkeys(filled)),
        )

    def recipes(self) -> dict[str, str]:
        """Its own."""
        return {"": self.recipe}

    def evaluated_by(self) -> type[Evaluate]:
        """With what was fitted, if anything was."""
        return EvaluateHead

    def fitted_because(self) -> str:
        """It is trained."""
        return "is trained"

    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What any candidate reads."""
        return self._arrays()

    def vector_identity(self) -> str | dict[str, str]:
        """Whether vectors are normalised; what was fitted says the rest."""
        return "head" if self.normalise == "none" else {"normalise": self.normalise}

    def fitted_loader(self) -> object:
        """Reads a trained head."""
        return loaders.HEAD


def _input(name: str, fit: Node, loader: object) -> Input:
    return Input(name=name, ref=fit.id, loader=import_path(loader))


class FitHead(Stage):
    """Trains a head."""

    name = "fit"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.fit.training import fit

        config = FitConfig.model_validate(node.config)
        data = fit_data(node, context, readers(node, context))
        before = [context.load(source) for source in node.inputs_named("before")]
        checkpoint = checkpoint_file(node, context)
        result = fit(
            *(config, data, progress, context.device, checkpoint, CHECKPOINT_EVERY_S),
            to_beat=before[0] if before else None,
        )
        result.save(draft.folder)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = FitConfig.model_validate(node.config)
        config.head.require_width(width_of(node, config.layer))
        data = fit_data(node, context, {})
        require_trainable(config, data)
        scored_examples(data)


class ChooseHead(Stage):
    """Keeps the candidate with the highest metric on dev, the first of equal ones."""

    name = CHOOSE

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        choice = choose([context.open(source) for source in node.inputs_named("candidate")])
        choice.save(draft.folder)
        chosen = node.inputs_named("candidate")[choice.candidate].ref
        draft.summary = {"fit": chosen, "dev": choice.dev_metric}


class ScoreHead(Stage):
    """Applies a trained head to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.scoring.score import score

        head = context.load(node.input("head"))
        data = fit_data(node, context, readers(node, context, [head.layer]))
        config = ScoreConfig.model_validate(node.config)
        chosen = None
        for _ in node.inputs_named(CHOSEN):
            read = readers(node, context, [head.layer], corpus=CHOSEN)
            chosen = fit_data(node, context, read, CHOSEN)
        result = score(config, head, data, context.device, chosen)
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        for source in node.inputs_named("trained_on"):
            require_same_training(context.corpus(source), context.corpus(node.input("corpus")))


class EvaluateHead(Evaluate):
    """Scores a trained head on an evaluation task."""

    @classmethod
    def vectors(cls, node: Node, context: RunContext) -> "HeadVectors":
        from permafrost.stages.encoder.vectors import HeadVectors

        method = node.config["embedding"]["method"]
        normalise = "none" if method == "head" else method["normalise"]
        vectors = HeadVectors(context.load(node.input("fitted")), normalise=normalise)
        vectors.module.to(context.device)
        return vectors


def fit_data(
    node: Node, context: RunContext, opened: dict[str, Any], name: str = "corpus"
) -> FitData:
    """The corpus of a node, by the name of the input, with the features that were opened."""
    corpus = context.corpus(node.input(name))
    return FitData(opened, corpus.examples, corpus.label_names, corpus.digests, corpus.task)
