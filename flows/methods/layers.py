"""Heads on the latents of every layer (FREEZE!): `kind: layers`."""

from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.evaluated import EvaluatedMethod
from permafrost.flows.methods.method import LayersHead
from permafrost.flows.nodes.evaluating import Evaluate
from permafrost.flows.nodes.latents import Latents, latents
from permafrost.flows.nodes.pretraining import pretrained_config
from permafrost.flows.nodes.reading import arrays_of, stores_of
from permafrost.flows.nodes.resuming import device_checkpoint
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.stage import Stage
from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.capture import in_order
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit.choice import STAGE as CHOOSE
from permafrost.stages.fit.choice import choose, chosen_candidate
from permafrost.stages.freeze.config import Correlation, PairFitConfig, Scale
from permafrost.stages.freeze.layers_head import PairHeadConfig, heads_with_vectors
from permafrost.stages.freeze.losses import PairLossConfig
from permafrost.stages.freeze.pair_candidates import pair_candidates
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.similarity import SimilarityConfig
from permafrost.storage.artifacts import Draft
from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest, to_plain
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.stages.encoder.vectors import LatentVectors
    from permafrost.stages.freeze.encoders import PretrainedEncoders


_LAYERS = "latents.layers"
"""The field of a grid that changes what its candidates read."""


class LayersCandidate(PairFitConfig):
    """A fit and what it reads of each layer."""

    latents: Latents = Latents()

    @property
    def fit(self) -> PairFitConfig:
        """The fit alone."""
        return PairFitConfig(**{name: getattr(self, name) for name in PairFitConfig.model_fields})


class LayersMethod(EvaluatedMethod):
    """A pair head on the latents of every layer (FREEZE!), once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["layers"] = "layers"
    head: PairHeadConfig
    """What reads the latents of both texts."""
    latents: Latents = Latents()
    """What is read of each layer."""
    encoders: str | None = None
    """Name of a pretraining whose encoders the head starts from."""
    backbone: str | None = None
    """Name of an adapted backbone to read in place of the experiment's; see `adapted`."""
    label_range: tuple[float, float] = (0.0, 5.0)
    """Lowest and highest label; predictions lie between 0 and 1."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Which optimiser; its rate is constant."""
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Learning rate."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of the optimiser."""
    batch_size: int = Field(default=128, ge=2, le=MAX_STEPS)
    """Pairs per step; one pair alone has no variance."""
    max_epochs: int = Field(default=150, ge=1, le=MAX_STEPS)
    """Passes over train; which one is kept is chosen on dev."""
    loss: PairLossConfig = Field(default="log_variance", validate_default=True)
    """Of predicted similarities, given the gold ones."""
    metric: Correlation | None = None
    """Which correlation chooses the epoch on dev and is reported; if not given, the one that `metrics` of the
    experiment has for the task, and Pearson's where that has none, or `spearman_pearson`."""
    evaluate_every: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Epochs between evaluations on dev; the last epoch is always evaluated."""
    scale: Scale = "none"
    """What is done with the latents first: nothing; `centred`, minus the mean of a latent's own numbers, as
    in the notebooks for GPT-2; `vector`, also over their standard deviation; `feature`, every number
    standardised over the train texts. Encoders are pretrained with the same."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control, which has no label to learn from."""
    test_by_epoch: Literal["none", "kept"] = "none"
    """`kept`: the report shows, beside the score at the epoch that dev chose, the highest test score of any
    evaluated epoch, as papers report it that choose on test. It chooses nothing. Not with a grid. The fit
    is the same, but its key is another."""
    grid: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Dotted field to candidate values, as `head.encoders.late`, `lr` or `latents.layers`; the best on dev is
    kept. Every combination is a fit of its own; those that read the same layers by other names are one."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with graded pairs if not given."""

    @model_validator(mode="after")
    def _grid_is_of_the_fit(self) -> "LayersMethod":
        try:
            self.candidates("pearson", 0)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _test_is_kept_of_one_fit(self) -> "LayersMethod":
        if self.test_by_epoch == "kept" and self.grid:
            raise ValueError(
                f"test_by_epoch is 'kept', but grid tries {', '.join(sorted(self.grid))}; give the settings "
                "that it chose to a method of its own"
            )
        return self

    @model_validator(mode="after")
    def _starts_from_its_own_backbone(self) -> "LayersMethod":
        if self.backbone is not None and self.encoders is not None:
            raise ValueError(
                f"backbone is {quoted(self.backbone)}, but the encoders {quoted(self.encoders)} were trained "
                "on latents of the experiment's own backbone; leave one out"
            )
        return self

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
        """Weights and batches are drawn."""
        return True

    @property
    def adapted_backbone(self) -> str | None:
        """As given."""
        return self.backbone

    def recipes(self) -> dict[str, str]:
        """That of its latents."""
        return {"": self.latents.recipe}

    def single_store_recipes(self) -> tuple[str, ...]:
        """It reads the latents of one store."""
        return (self.latents.recipe,)

    def layers_head(self) -> LayersHead:
        """Its own."""
        head = self.head
        return LayersHead(
            head.kind, head.has_vector, self.latents.recipe, self._arrays, _LAYERS in self.grid
        )

    def pretraining(self) -> str | None:
        """Whose encoders it starts from."""
        return self.encoders

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """What any candidate reads."""
        return {self.latents.recipe: self._arrays(sizes)}

    def _arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        tried = self._different("pearson", 0, sizes).values()  # The metric changes nothing read.
        return in_order({array for one in tried for array in one.latents.arrays(sizes)})

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if it is trained on shuffled labels: it has none to learn from."""
        return "control" if self.labels == "shuffled" else "method"

    def loss_on(self, kind: TaskKind) -> str:
        """As given."""
        return self.loss.kind

    def fit_config(self, metric: Correlation, seed: int) -> PairFitConfig:
        """The complete config of one fit on a task whose own metric is given."""
        fields = {n: getattr(self, n) for n in PairFitConfig.model_fields if n != "seed"}
        fields["metric"] = self.metric or metric
        return PairFitConfig(**fields, seed=seed)

    def candidates(self, metric: Correlation, seed: int) -> dict[str, LayersCandidate]:
        """All fits that are chosen from, by what tells them apart; the only one under "".

        Raises:
            InputError: a field of the latents but their layers, which may be of another store or pretraining;
                see also `stages.freeze.pair_candidates`.
        """
        if wrong := [f for f in self.grid if f.partition(".")[0] == "latents" and f != _LAYERS]:
            raise InputError(
                f"grid tries {wrong[0]}, but of latents a grid tries {_LAYERS} alone; give each value of "
                "another field a method of its own"
            )
        fit = self.fit_config(metric, seed)
        fields = {name: getattr(fit, name) for name in PairFitConfig.model_fields}
        return pair_candidates(LayersCandidate(**fields, latents=self.latents), self.grid)

    def _different(
        self, metric: Correlation, seed: int, sizes: BackboneSizes
    ) -> dict[str, LayersCandidate]:
        """The candidates, of those that are the same fit the first: `last` and `-1` may be one block."""
        found: dict[str, tuple[str, LayersCandidate]] = {}
        for name, candidate in self.candidates(metric, seed).items():
            try:
                reads = candidate.latents.arrays(sizes)
            except InputError as error:
                raise InputError(f"grid.{error}" if _LAYERS in self.grid else str(error)) from error
            fit = digest({"fit": to_plain(candidate.fit), "reads": [*reads]})
            found.setdefault(fit, (name, candidate))
        return dict(found.values())

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """A pair head for each candidate, trained on the train pairs of a task, and the choice among them."""
        upstream = cell.upstream
        encoders: list[Input] = []
        of_encoders: dict[str, object] = {}
        if self.encoders is not None:
            node = upstream.pretraining(self.encoders)
            encoders.append(Input(name="encoders", ref=node.id, loader=loaders.AUTOENCODERS))
            of_encoders["encoders"] = {
                "config": node.config,
                "arrays": arrays_of(node),
                "stores": stores_of(node),
                "recipes": [self.latents.recipe, node.run_facts["recipe"]],
            }
        label = f"{cell.method} · {cell.task} · seed {cell.seed}"
        fits: list[Node] = []
        different = self._different(cell.correlation, cell.seed, upstream.sizes)
        for name, candidate in different.items():
            latents = candidate.latents
            read = cell.reading(latents.recipe, latents.arrays(upstream.sizes))
            fits.append(
                FitLayers.node(
                    f"fit {label} · {name}" if name else f"fit {label}",
                    {"kind": "layers", **to_plain(candidate.fit), "label_range": self.label_range},
                    [cell.corpus, *read.inputs, *encoders],
                    kinds=(candidate.fit,),
                    run_facts={**read.run_facts, **of_encoders},
                    after=read.after,
                )
            )
        if len(fits) == 1:
            return tuple(fits)
        chosen = [Input(name="candidate", ref=fit.id, loader=loaders.PAIR_FIT) for fit in fits]
        return *fits, ChooseLayersHead.node(f"choose {label}", {}, chosen)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """A trained pair head on dev and test."""
        sizes = cell.upstream.sizes
        read = cell.reading(self.latents.recipe, self._arrays(sizes))
        head = Input(name="head", ref=fitted.id, loader=loaders.LAYERS_SCORE)
        metric = cell.correlation
        tried = [one.latents for one in self._different(metric, cell.seed, sizes).values()]
        layers = [{"layers": one.layers, "arrays": one.arrays(sizes)} for one in tried]
        return ScoreLayers.node(
            f"score {cell.method} · {cell.task} · seed {cell.seed}",
            SimilarityConfig(metric=self.metric or metric),
            (head, cell.corpus, *read.inputs),
            run_facts={
                **read.run_facts,
                **cell.names,
                **({"candidates": layers} if _LAYERS in self.grid else {}),
            },
            after=read.after,
        )

    def without_vector(self) -> str | None:
        """Only some heads have one, and an evaluation has to know beforehand what is read."""
        if self.head.has_vector and _LAYERS in self.grid:
            return (
                f"whose grid tries {_LAYERS}, so that what it reads is known only when it is trained; give "
                "the layers that it chose to a method of its own"
            )
        if self.head.has_vector:
            return None
        return (
            f"whose head {quoted(self.head.kind)} scores pairs of texts and has no vector for one text that "
            f"mteb could use; among the heads on every layer only {heads_with_vectors()} have"
        )

    def evaluated_by(self) -> type[Evaluate]:
        """With what was fitted, if anything was."""
        return EvaluateLayers

    def fitted_because(self) -> str:
        """It is trained."""
        return "is trained"

    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Its latents."""
        return self.latents.arrays(sizes)

    def vector_identity(self) -> str:
        """What was fitted says it all."""
        return "head"

    def fitted_loader(self) -> object:
        """Reads a trained head that has a vector for a text."""
        return loaders.LATENT_HEAD

    def fitted_corpora(self, fitted: Cell) -> tuple[Input, ...]:
        """Its autoencoders saw every text of theirs."""
        if self.encoders is None:
            return ()
        return (fitted.upstream.pretraining(self.encoders).input("corpus"),)


class FitLayers(Stage):
    """Trains a pair head."""

    name = "fit"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.corpus import fit_corpus

        config, label_range = _fit_config(node)
        encoders = [
            _for_layers(context.load(source), node) for source in node.inputs_named("encoders")
        ]
        file = device_checkpoint(node, context)
        result = fit_corpus(
            config,
            latents(node, context),
            context.corpus(node.input("corpus")),
            label_range,
            encoders[0] if encoders else None,
            progress,
            context.device,
            file,
        )
        result.save(draft.folder)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.freeze.graded import require_pairs
        from permafrost.stages.freeze.pretrained_layers import require_encoders

        config, label_range = _fit_config(node)
        require_pairs(context.corpus(node.input("corpus")), label_range)
        if (given := node.run_facts.get("encoders")) is not None:
            if stores_of(node) != tuple(given["stores"]):
                own, theirs = map(quoted, given["recipes"])
                raise InputError(
                    f"the head reads latents of the recipe {own}, but its encoders were pretrained on those "
                    f"of {theirs}; give both the same"
                )
            pretrained = pretrained_config(given["config"])
            require_encoders(config, arrays_of(node), pretrained, given["arrays"])
        elif (sizes := config.head.encoder_sizes) is not None:
            sizes.by_layer(len(arrays_of(node)))


def _for_layers(pretrained: "PretrainedEncoders", node: Node) -> "PretrainedEncoders":
    """Those of the layers that a fit reads."""
    from permafrost.stages.freeze.pretrained_layers import places_of

    theirs = node.run_facts["encoders"]["arrays"]
    places = places_of(arrays_of(node), theirs)
    return pretrained if len(places) == len(theirs) else pretrained.of_layers(places)


def _fit_config(node: Node) -> tuple[PairFitConfig, tuple[float, float]]:
    fields = {k: v for k, v in node.config.items() if k not in ("kind", "label_range")}
    low, high = node.config["label_range"]
    return PairFitConfig.model_validate(fields), (float(low), float(high))


class ChooseLayersHead(Stage):
    """Keeps the candidate with the highest metric on dev, the first of equal ones."""

    name = CHOOSE

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.pair_fit import PAIR_HEAD

        sources = node.inputs_named("candidate")
        choice = choose([context.open(source) for source in sources], PAIR_HEAD)
        choice.save(draft.folder)
        draft.summary = {"fit": sources[choice.candidate].ref, "dev": choice.dev_metric}


class ScoreLayers(Stage):
    """Applies a trained pair head to dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.freeze.corpus import score_corpus
        from permafrost.stages.freeze.pair_fit import PAIR_HEAD

        config = SimilarityConfig.model_validate(node.config)
        folder, corpus = context.open(node.input("head")), context.corpus(node.input("corpus"))
        read, layers = latents(node, context), None
        if "candidates" in node.run_facts:
            chosen = node.run_facts["candidates"][chosen_candidate(folder, PAIR_HEAD)]
            arrays, layers = arrays_of(node), chosen["layers"]
            read = read[:, [arrays.index(array) for array in chosen["arrays"]]]
        result = score_corpus(config, folder, read, corpus, layers)
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)


class EvaluateLayers(Evaluate):
    """Scores a unified head on an evaluation task."""

    @classmethod
    def vectors(cls, node: Node, context: RunContext) -> "LatentVectors":
        from permafrost.stages.encoder.load import load_latent_head

        source = node.input("fitted")
        vectors = load_latent_head(context.open(source), arrays_of(node), source.ref)
        vectors.module.to(context.device)
        return vectors
