"""The interface of methods in an experiment: what a method reads, what it is scored on, and its nodes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.nodes.reading import Reading
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.recipes import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit import Metric
from permafrost.stages.fit.metrics import DEFAULT_METRIC
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.metrics.records import Role
from permafrost.stages.mteb_evaluation import MtebTask, TaskFacts
from permafrost.stages.mteb_evaluation import Role as TextRole
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.keys import to_plain
from permafrost.storage.quoting import quoted

CLASSES: tuple[TaskKind, ...] = ("classification", "pair_classification")


@dataclass(frozen=True)
class BackboneUse:
    """The backbone under one recipe, to compute what stores do not keep."""

    key: Mapping[str, Any]
    """Everything that determines results: digests of its files, precision, maximum input length, recipe."""
    run_facts: Mapping[str, Any]
    """Where its files are."""
    recipe: Recipe
    """Its code is part of the key of a node that runs the backbone under it."""


class Upstream(Protocol):
    """The nodes on which those of a method depend."""

    @property
    def sizes(self) -> BackboneSizes:
        """Sizes of the experiment's backbone."""
        ...

    def corpus(self, task: str) -> Input:
        """The corpus of a task."""
        ...

    def reading(self, recipe: str, arrays: Sequence[str], task: str) -> Reading:
        """Features of a task's texts under a recipe."""
        ...

    def backbone(self, recipe: str) -> BackboneUse:
        """The experiment's backbone.

        Raises:
            InputError: the recipe is an ensemble of prompts.
        """
        ...

    def pretraining(self, name: str) -> Node:
        """A pretraining, from which several heads are initialised."""
        ...


@dataclass(frozen=True)
class Cell:
    """One method on one task with one seed."""

    method: str
    task: str
    seed: int
    task_config: CorpusConfig
    named_metric: Metric | None
    """The metric by which the experiment compares methods on this task, if it sets one."""
    upstream: Upstream

    @property
    def task_kind(self) -> TaskKind:
        """Of the task."""
        return self.task_config.task_kind

    @property
    def metric(self) -> Metric:
        """The metric named, or the default one of the kind of task."""
        return self.named_metric or DEFAULT_METRIC[self.task_kind]

    @property
    def corpus(self) -> Input:
        """Of the task."""
        return self.upstream.corpus(self.task)

    @property
    def names(self) -> dict[str, str | int]:
        """For summaries."""
        return {"method": self.method, "task": self.task, "seed": self.seed}


class Method(Kind, ABC):
    """One entry of `methods`."""

    @property
    @abstractmethod
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Kinds of task on which it is scored."""

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """The only tasks on which it is scored; None for every task of its kinds."""
        return None

    @property
    def is_random(self) -> bool:
        """Whether it runs once per seed."""
        return False

    def recipes(self) -> dict[str, str]:
        """Names of the recipes it reads, by the field that names them."""
        return {}

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """Arrays to extract for the tasks on which it is scored, by recipe.

        Raises:
            InputError: a layer that the backbone does not have.
        """
        return {}

    def captured(self) -> tuple[str, ...]:
        """Arrays that the experiment's `capture` must contain."""
        return ()

    def single_store_recipes(self) -> tuple[str, ...]:
        """Recipes that must not be ensembles of prompts, one store each."""
        return ()

    def pretraining(self) -> str | None:
        """Name of the pretraining from which it is initialised."""
        return None

    def role_on(self, task: CorpusConfig | None) -> Role:
        """Its role in the report on a task of the experiment, or on an evaluation task (None)."""
        return "method"

    def loss_on(self, kind: TaskKind) -> str | None:
        """Name of the loss that it minimises; None if nothing is trained in epochs."""
        return None

    @abstractmethod
    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """What is fitted, or made, on a task. The last is the one that counts; it may choose from the
        others."""

    def score_node(self, cell: Cell, fitted: Node) -> Node | None:
        """The node with its metrics; None if that is the last of `fit_nodes`."""
        return None

    def evaluated(self) -> "EvaluatedMethod | None":
        """The method itself if it computes a vector for any single text, else None."""
        return None

    def without_vector(self) -> str | None:
        """Why it has no vector for a single text; None if it has one."""
        return (
            f"which is of kind {quoted(self.kind)} and has no vector for one text that mteb could use; name "
            "methods of kind embed or head"
        )


METHODS = Category("method", Method, "permafrost.flows.methods")
MethodConfig = Annotated[Method, METHODS.field()]
"""Any method, by its `kind`."""


@dataclass(frozen=True)
class RoleStores:
    """Where features of the texts of one role are read: the stores of one recipe."""

    recipes: tuple[Recipe, ...]
    """A single one, or one per prompt of an ensemble."""
    identities: tuple[StoreIdentity, ...]
    """One per prompt of an ensemble."""
    reading: Reading


@dataclass(frozen=True)
class EvaluationSite:
    """The facts of one evaluation task for the node of a method on it."""

    task: str
    config: MtebTask
    facts: TaskFacts
    roles: Mapping[TextRole, RoleStores]
    instructed: Mapping[TextRole, str]
    fitted: Cell | None
    """The task on which the method was fitted; None if it is not fitted."""


class EvaluatedMethod(Method):
    """A method that computes a vector for any single text."""

    def evaluated(self) -> "EvaluatedMethod":
        """Itself."""
        return self

    @abstractmethod
    def evaluated_by(self) -> type[Stage]:
        """The stage that scores it on evaluation tasks."""

    def without_vector(self) -> str | None:
        """Why it has no vector for a text with these settings; None if it has one."""
        return None

    @abstractmethod
    def fitted_because(self) -> str | None:
        """Why it needs a task to be fitted on, e.g. "it is trained"; None if it does not."""

    @property
    def fitted_on_any_task(self) -> bool:
        """Whether it can be fitted on tasks on which it is not scored."""
        return False

    @property
    def learns_from_texts(self) -> bool:
        """Whether it was fitted on texts without instructions, which would be new to it in an evaluation."""
        return True

    def recipe_for(self, role: TextRole) -> str:
        """The recipe under which texts of a role are read."""
        (recipe,) = set(self.recipes().values())
        return recipe

    @abstractmethod
    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Arrays from which its vectors are computed."""

    @abstractmethod
    def vector_identity(self) -> object:
        """The part of its config that determines the vectors, besides what was fitted."""

    @abstractmethod
    def fitted_loader(self) -> object:
        """The loader of what was fitted."""

    def fitted_corpora(self, fitted: Cell) -> tuple[Input, ...]:
        """Corpora whose texts it has all seen in training."""
        return ()

    def evaluation_node(
        self, name: str, seed: int, site: EvaluationSite, made: Node | None
    ) -> Node:
        """This method on an evaluation task.

        Args:
            name: name of the method.
            seed: seed of what was fitted.
            site: the task.
            made: node of what was fitted.
        """
        stores = {r: [to_plain(i) for i in s.identities] for r, s in site.roles.items()}
        readings = {id(s.reading): s.reading for s in site.roles.values()}.values()
        inputs = [i for r in readings for i in r.inputs]
        if made is not None:
            assert site.fitted is not None
            inputs += [
                Input(name="fitted", ref=made.id, loader=import_path(self.fitted_loader())),
                site.fitted.corpus.model_copy(update={"name": "trained_on"}),
                *(c.model_copy(update={"name": "seen"}) for c in self.fitted_corpora(site.fitted)),
            ]
        label = f"evaluate {name} · {site.task}" + (f" · seed {seed}" if self.is_random else "")
        return self.evaluated_by().node(
            label,
            {
                "task": site.facts.key,
                "embedding": {
                    "stores": stores,
                    "method": to_plain(self.vector_identity()),
                    "made_from": None if made is None else made.id,
                },
            },
            inputs,
            kinds=[
                *(recipe for s in site.roles.values() for recipe in s.recipes),
                self.vector_identity(),
            ],
            run_facts={
                **next(iter(readings)).run_facts,
                "method": name,
                "task": site.task,
                "seed": seed,
                "config": site.config.model_dump(mode="json"),
                "instructions": site.instructed,
            },
            after=[a for r in readings for a in r.after],
        )
