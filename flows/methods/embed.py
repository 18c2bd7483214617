"""Vectors without training: `kind: embed`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.evaluated import Choosing, EvaluatedMethod, EvaluationSite
from permafrost.flows.nodes.evaluating import Evaluate, n_members
from permafrost.flows.nodes.layer_choice import (
    CHOSEN,
    ChooseLayers,
    LayersBy,
    chosen_layers,
)
from permafrost.flows.nodes.reading import features, sizes_of
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.embed.config import (
    AUTO,
    CHOSEN_LAYERS,
    EmbedConfig,
    required_arrays,
    with_layers,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.mteb_evaluation.task import Role
from permafrost.stages.scoring.similarity import SimilarityConfig, require_graded
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.stages.embed.corpus import CorpusVectors
    from permafrost.stages.encoder.vectors import MethodVectors


class EmbedMethod(EvaluatedMethod, EmbedConfig):
    """Vectors from cached features without training, compared by their cosine."""

    kind: Literal["embed"] = "embed"
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with graded pairs if not given."""
    backbone: str | None = None
    """Name of an adapted backbone to read in place of the experiment's; see `adapted`."""
    metric: Literal["spearman", "pearson"] = "spearman"
    """Which correlation of the cosines with the grades is reported."""
    layers_by: LayersBy | None = None
    """By which evaluation `layers: auto` is chosen; by graded dev pairs of a task if not given."""
    prompts: dict[Literal["query", "document"], str] = Field(default_factory=dict)
    """Recipes, by name, for queries and documents of evaluations that search; `recipe` for other texts."""

    @model_validator(mode="after")
    def _auto_layers_are_chosen(self) -> "EmbedMethod":
        if self.layers_by is not None and self.layers != AUTO:
            raise ValueError(
                f"layers_by chooses what 'layers: auto' stands for, but layers is {quoted(self.layers)}; "
                "leave one of them out (most: 1 in layers_by is the best single one)"
            )
        if self.layers_by is not None and self.chosen_by != "spearman":
            raise ValueError(
                f"chosen_by is {quoted(self.chosen_by)}, but layers_by chooses by the scores of an "
                "evaluation; leave one of them out"
            )
        return self

    @property
    def config(self) -> EmbedConfig:
        """How the vectors are made."""
        return EmbedConfig(**{name: getattr(self, name) for name in EmbedConfig.model_fields})

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Graded pairs."""
        return ("similarity",)

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def adapted_backbone(self) -> str | None:
        """As given."""
        return self.backbone

    def recipes(self) -> dict[str, str]:
        """Its own, and those of queries and documents."""
        return {"": self.recipe, **{f".prompts.{role}": r for role, r in self.prompts.items()}}

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """What the method needs of its own recipe."""
        return {self.recipe: required_arrays(self.config, sizes)}

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """Vectors of a task's texts."""
        arrays = required_arrays(self.config, cell.upstream.sizes)
        read, choice = cell.reading(self.recipe, arrays), cell.upstream.choice(cell.method)
        node = EmbedCorpus.node(
            f"embed {cell.method} · {cell.task}",
            self.config,
            (cell.corpus, *read.inputs, *(() if choice is None else (choice,))),
            run_facts={**read.run_facts, "method": cell.method, "task": cell.task},
            after=read.after,
        )
        return (node,)

    def score_node(self, cell: Cell, fitted: Node) -> Node:
        """Vectors against the grades of dev and test."""
        vectors = Input(name="vectors", ref=fitted.id, loader=loaders.CORPUS_VECTORS)
        return ScoreVectors.node(
            f"score {cell.method} · {cell.task}",
            SimilarityConfig(metric=self.metric),
            (vectors, cell.corpus),
            run_facts={"method": cell.method, "task": cell.task},
        )

    def evaluated_by(self) -> type[Evaluate]:
        """With what was fitted, if anything was."""
        return EvaluateEmbed

    def fitted_because(self) -> str | None:
        """Layers may be chosen on a task, and whitening is fitted on one."""
        if self.is_chosen and self.layers_by is None:
            return "chooses its layers"
        return None if self.whitening is None else "fits its whitening"

    @property
    def fitted_on_any_task(self) -> bool:
        """Whitening needs texts only."""
        return not self.is_chosen or self.layers_by is not None

    @property
    def joins_prompts(self) -> bool:
        """By `combine: concatenate`."""
        return self.combine == "concatenate"

    @property
    def learns_from_texts(self) -> bool:
        """Whitening does."""
        return self.whitening is not None

    def choosing(self) -> Choosing | None:
        """Layers may be chosen by an evaluation."""
        by = self.layers_by
        return (
            None if by is None else Choosing(by.evaluation, partial(choice_node, by, self.config))
        )

    def recipe_for(self, role: Role) -> str:
        """Queries and documents may have one of their own."""
        return self.recipe if role == "text" else self.prompts.get(role, self.recipe)

    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What the method needs."""
        return required_arrays(self.config, sizes)

    def vector_identity(self) -> EmbedConfig:
        """How the vectors are made."""
        return self.config

    def fitted_loader(self) -> object:
        """Reads the layers that were chosen and the whitening that was fitted."""
        return loaders.CORPUS_VECTORS


def choice_node(
    by: LayersBy, config: EmbedConfig, name: str, sites: Sequence[EvaluationSite]
) -> Node:
    """What chooses the layers of a method.

    Args:
        by: which scores.
        config: of the method; its whitening plays no part.
        name: of the method.
        sites: the tasks.
    """
    readings = {id(s.reading): s.reading for site in sites for s in site.roles.values()}.values()
    tasks = {
        site.task: {
            "key": site.facts.key,
            "category": site.facts.category,
            "stores": {r: [to_plain(i) for i in s.identities] for r, s in site.roles.items()},
        }
        for site in sites
    }
    where = {
        site.task: {
            "config": site.config.model_dump(mode="json"),
            "stores": {role: s.names for role, s in site.roles.items()},
        }
        for site in sites
    }
    return ChooseLayers.node(
        f"choose layers of {name} · {by.evaluation}",
        {"method": to_plain(config), "tasks": tasks, "most": by.most},
        list(dict.fromkeys(i for r in readings for i in r.inputs)),
        kinds=[
            config,
            *(site.config for site in sites),
            *(recipe for site in sites for s in site.roles.values() for recipe in s.recipes),
        ],
        run_facts={
            **next(iter(readings)).run_facts,
            "tasks": where,
            "method": name,
            "task": by.evaluation,
        },
        after=[a for r in readings for a in r.after],
    )


class EmbedCorpus(Stage):
    """Makes one vector per text of a corpus."""

    name = "embed"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.embed.corpus import embed_corpus

        corpus = context.corpus(node.input("corpus"))
        config = EmbedConfig.model_validate(node.config)
        if (chosen := chosen_layers(node, context)) is not None:
            config = with_layers(config, chosen)
        made = embed_corpus(config, features(node, context), corpus, progress)
        made.save(draft.folder)
        names = {n: node.run_facts[n] for n in ("method", "task")}
        draft.summary = {**names, **made.choice}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.embed.corpus import require_embeddable

        config = EmbedConfig.model_validate(node.config)
        if node.inputs_named(CHOSEN):
            config = config.model_copy(
                update={"layers": "all"}
            )  # Whichever: they need no dev pairs.
        require_embeddable(config, sizes_of(node), context.corpus(node.input("corpus")))


class ScoreVectors(Stage):
    """Holds the cosines of vectors against the grades of dev and test."""

    name = "score"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.scoring.similarity import score_vectors

        config = SimilarityConfig.model_validate(node.config)
        corpus = context.corpus(node.input("corpus"))
        result = score_vectors(config, context.open(node.input("vectors")), corpus)
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, node)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        require_graded(context.corpus(node.input("corpus")))


class EvaluateEmbed(Evaluate):
    """Scores vectors without training on an evaluation task."""

    @classmethod
    def vectors(cls, node: Node, context: RunContext) -> "MethodVectors":
        from permafrost.stages.encoder.vectors import MethodVectors

        config = EmbedConfig.model_validate(node.config["embedding"]["method"])
        sizes, n = sizes_of(node), n_members(node)
        if config.is_chosen:
            config = with_layers(config, cls._layers(node, context))
        fitted = [context.load(source) for source in node.inputs_named("fitted")]
        return MethodVectors(config, sizes, n, fitted[0].whitening if fitted else None)

    @classmethod
    def choice(cls, node: Node, context: RunContext) -> Mapping[str, str]:
        if node.config["embedding"]["method"]["layers"] not in CHOSEN_LAYERS:
            return {}
        return {"layers": ",".join(map(str, cls._layers(node, context)))}

    @classmethod
    def _layers(cls, node: Node, context: RunContext) -> tuple[int, ...]:
        """As chosen by an evaluation, or with what was fitted."""
        if (chosen := chosen_layers(node, context)) is not None:
            return chosen
        fitted: CorpusVectors = context.load(node.input("fitted"))
        return tuple(k for k in fitted.layers if k != "final")
