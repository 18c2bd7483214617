"""What every method of an experiment is asked: what it reads, what it is scored on, and its nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.nodes.reading import Reading
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractTarget, ResolvedBackbone
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.metrics import DEFAULT_METRIC, Metric
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.metrics.records import Role
from permafrost.stages.mteb_evaluation.evaluate import TaskFacts
from permafrost.stages.mteb_evaluation.task import MtebTask
from permafrost.stages.mteb_evaluation.task import Role as TextRole
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.keys import to_plain
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.stages.finetune.tuning import Tuning

CLASSES: tuple[TaskKind, ...] = ("classification", "pair_classification")


@dataclass(frozen=True)
class BackboneUse:
    """The backbone itself under one recipe, for what no store keeps."""

    key: Mapping[str, Any]
    """What of it decides results: digests of its files, precision, longest input, recipe."""
    run_facts: Mapping[str, Any]
    """Where it is."""
    recipe: Recipe
    """Its code is that of a node that runs it."""


class Upstream(Protocol):
    """The nodes that those of a method are built upon."""

    @property
    def sizes(self) -> BackboneSizes:
        """Of the experiment's backbone."""
        ...

    def corpus(self, task: str) -> Input:
        """The corpus of a task."""
        ...

    def reading(
        self, recipe: str, arrays: Sequence[str], task: str, backbone: str | None = None
    ) -> Reading:
        """Features of a task's texts under a recipe.

        Args:
            recipe: its name.
            arrays: what is read.
            task: its name.
            backbone: an adapted one by its name; None for the experiment's.
        """
        ...

    def corpus_node(self, task: str) -> Node:
        """The node that makes the corpus of a task."""
        ...

    def resolved(self, backbone: BackboneConfig | None) -> ResolvedBackbone:
        """A backbone with its files and sizes; None for the experiment's own.

        Raises:
            InputError: it cannot be used.
        """
        ...

    def target(self, recipe: str) -> ExtractTarget:
        """The store of a recipe of the experiment, which is no ensemble."""
        ...

    def backbone(self, recipe: str) -> BackboneUse:
        """The experiment's backbone.

        Raises:
            InputError: the recipe is an ensemble of prompts.
        """
        ...

    def pretraining(self, name: str) -> Node:
        """What several heads start from."""
        ...

    def cell(self, method: str, task: str, seed: int) -> tuple[Method, Cell]:
        """Another method of the experiment, by its name, and what it is on a task."""
        ...

    def fitted(self, method: str, task: str, seed: int) -> Node:
        """What another method of the experiment has fitted, to be used on a task."""
        ...

    def choice(self, method: str) -> Input | None:
        """What is chosen of a method by its scores on an evaluation; None where nothing is."""
        ...


@dataclass(frozen=True)
class Cell:
    """One method on one task with one seed."""

    method: str
    task: str
    seed: int
    task_config: CorpusConfig
    named_metric: Metric | None
    """What the experiment compares methods by on this task, if it says so."""
    upstream: Upstream
    backbone: str | None = None
    """The adapted backbone that the method reads, by its name; None for the experiment's."""
    graphs_of: tuple[str, ...] = ()
    """Words of the test cases whose graphs the report draws; some cases if there are none."""
    fitted_on: str | None = None
    """The task on which the method was fitted, where that is another one."""

    @property
    def task_kind(self) -> TaskKind:
        """Of the task."""
        return self.task_config.task_kind

    @property
    def metric(self) -> Metric:
        """The named one, or else the usual one of the kind of task."""
        return self.named_metric or DEFAULT_METRIC[self.task_kind]

    @property
    def corpus(self) -> Input:
        """Of the task."""
        return self.upstream.corpus(self.task)

    def reading(self, recipe: str, arrays: Sequence[str]) -> Reading:
        """Features of the task's texts under a recipe, of the backbone that the method reads."""
        return self.upstream.reading(recipe, arrays, self.task, self.backbone)

    @property
    def names(self) -> dict[str, str | int]:
        """For summaries."""
        return {"method": self.method, "task": self.task, "seed": self.seed}


@dataclass(frozen=True)
class TokenHead:
    """A head on the tokens of single texts, as methods know it that read its fits."""

    recipe: str
    """Under which it reads."""
    has_grid: bool
    """Whether its setting is chosen after training."""
    fit: Callable[[TaskKind, Metric, int], FitConfig]
    """Its fit without the grid: on a kind of task, by its metric, with a seed."""
    candidates: Callable[[TaskKind, Metric, int], Mapping[str, FitConfig]]
    """All fits among which it chooses."""


@dataclass(frozen=True)
class LayersHead:
    """A head on the latents of layers, as methods know it that read its fits."""

    kind: str
    """Of the head."""
    has_vector: bool
    """Whether it gives one text a code."""
    recipe: str
    """Under which it reads."""
    arrays: Callable[[BackboneSizes], tuple[str, ...]]
    """What it reads of a backbone with these sizes."""


class Method(Kind, ABC):
    """One entry of `methods`."""

    @property
    @abstractmethod
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Kinds of task that it is scored on."""

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """The only tasks that it is scored on; None for every task of its kinds."""
        return None

    def fits(self, task: CorpusConfig) -> bool:
        """Whether it can be scored on a task; by default if that is of its kinds."""
        return task.task_kind in self.task_kinds

    @property
    def draws_graphs(self) -> bool:
        """Whether reports draw graphs that it reads."""
        return False

    @property
    def is_random(self) -> bool:
        """Whether it runs once per seed."""
        return False

    def recipes(self) -> dict[str, str]:
        """Names of the recipes it reads, by the field that names them."""
        return {}

    @property
    def adapted_backbone(self) -> str | None:
        """Name of the adapted backbone whose features it reads; None for the experiment's own backbone."""
        return None

    def tuning(self) -> Tuning | None:
        """What its fits train of the experiment's backbone, if others may read the one that they leave; None
        for a method that leaves none."""
        return None

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """Arrays that are extracted for it on the tasks it is scored on, by recipe.

        Raises:
            InputError: a layer that the backbone does not have.
        """
        return {}

    def captured(self) -> tuple[str, ...]:
        """Arrays that the experiment's `capture` must hold."""
        return ()

    def single_store_recipes(self) -> tuple[str, ...]:
        """Recipes that must not be ensembles of prompts, one store each."""
        return ()

    def pretraining(self) -> str | None:
        """Name of the pretraining that it starts from."""
        return None

    def token_head(self) -> TokenHead | None:
        """The head that its fits hold, if it is one on the tokens of single texts."""
        return None

    def layers_head(self) -> LayersHead | None:
        """The head that its fits hold, if it is one on the latents of layers."""
        return None

    @property
    def fits_other_test_sets(self) -> bool:
        """Whether what it fitted on one task can be scored on another with the same train and dev."""
        return False

    @property
    def read_methods(self) -> tuple[str, ...]:
        """Names of the methods whose fits it reads, on the same tasks with the same seeds."""
        return ()

    def require_readable(self, others: dict[str, Method]) -> None:
        """Check that it can read the fits of the methods that it names.

        Raises:
            ValueError: it cannot; which of them, and what is wrong.
        """

    def role_on(self, task: CorpusConfig | None) -> Role:
        """What it is in the report on a task of the experiment, or on one of an evaluation (None)."""
        return "method"

    def must_be_at_chance(self, task: CorpusConfig | None) -> bool:
        """Whether it gets nothing from which the answer can be learnt, so that the report holds it against
        the majority rate: every control, unless a kind says otherwise."""
        return self.role_on(task) == "control"

    def loss_on(self, kind: TaskKind) -> str | None:
        """What its training makes small; None where nothing is trained in epochs."""
        return None

    def further_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """Corpora and extractions that it needs beside those of the task's own texts."""
        return ()

    @abstractmethod
    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """What is fitted, or made, on a task. The last is the one that counts; it may choose from the
        others."""

    def score_node(self, cell: Cell, fitted: Node) -> Node | None:
        """What holds its metrics; None where the last of `fit_nodes` does."""
        return None

    def evaluated(self) -> EvaluatedMethod | None:
        """Itself, if it has a vector for a text, whatever corpus that belongs to."""
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
    """Where the texts of one role are read: the stores of one recipe."""

    recipes: tuple[Recipe, ...]
    """One; several for the prompts of an ensemble."""
    identities: tuple[StoreIdentity, ...]
    """One per prompt of an ensemble; of an adapted backbone what is known before it is trained."""
    names: tuple[str, ...]
    """Their ids, or the names of those whose ids are not known yet."""
    reading: Reading


@dataclass(frozen=True)
class EvaluationSite:
    """One evaluation task, as the node of a method on it needs to know it."""

    task: str
    config: MtebTask
    facts: TaskFacts
    roles: Mapping[TextRole, RoleStores]
    instructed: Mapping[TextRole, str]
    fitted: Cell | None
    """Where the method was fitted; None for one that is not."""
    chosen: Input | None = None
    """What was chosen of the method by its scores on other tasks; None where nothing is."""


@dataclass(frozen=True)
class Choosing:
    """Something of a method that is chosen by its scores on an evaluation."""

    evaluation: str
    """Its name."""
    node: Callable[[str, Sequence[EvaluationSite]], Node]
    """What chooses: of a method by its name, by these tasks."""


class EvaluatedMethod(Method):
    """A method that has a vector for a text, whatever corpus that belongs to."""

    def evaluated(self) -> EvaluatedMethod:
        """Itself."""
        return self

    @abstractmethod
    def evaluated_by(self) -> type[Stage]:
        """The stage that scores it."""

    def without_vector(self) -> str | None:
        """Why it has none with these settings."""
        return None

    @abstractmethod
    def fitted_because(self) -> str | None:
        """What of it needs a task to be fitted on, as in "it is trained"; None if nothing does."""

    def choosing(self) -> Choosing | None:
        """By which evaluation something of it is chosen; None where nothing is."""
        return None

    @property
    def fitted_on_any_task(self) -> bool:
        """Whether it can be fitted on tasks that it is not scored on."""
        return False

    @property
    def learns_from_texts(self) -> bool:
        """Whether it was fitted on texts as they are, so that instructions around them would be new to it."""
        return True

    def recipe_for(self, role: TextRole) -> str:
        """Under which texts of a role are read."""
        (recipe,) = set(self.recipes().values())
        return recipe

    @abstractmethod
    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Arrays that its vectors are made of."""

    @abstractmethod
    def vector_identity(self) -> object:
        """What of its config decides the vectors, beside what was fitted."""

    @abstractmethod
    def fitted_loader(self) -> object:
        """What reads what was fitted."""

    def fitted_corpora(self, fitted: Cell) -> tuple[Input, ...]:
        """Corpora of which it has seen every text."""
        return ()

    def evaluation_node(
        self, name: str, seed: int, site: EvaluationSite, made: Node | None
    ) -> Node:
        """This method on an evaluation task.

        Args:
            name: of the method.
            seed: of what was fitted.
            site: the task.
            made: what was fitted.
        """
        stores = {r: [to_plain(i) for i in s.identities] for r, s in site.roles.items()}
        readings = {id(s.reading): s.reading for s in site.roles.values()}.values()
        inputs, source = [i for r in readings for i in r.inputs], None
        if made is not None:
            source = made.id
            assert site.fitted is not None
            inputs += [
                Input(name="fitted", ref=made.id, loader=import_path(self.fitted_loader())),
                site.fitted.corpus.model_copy(update={"name": "trained_on"}),
                *(c.model_copy(update={"name": "seen"}) for c in self.fitted_corpora(site.fitted)),
            ]
        elif site.chosen is not None:
            inputs.append(site.chosen)
            source = site.chosen.ref
        label = f"evaluate {name} · {site.task}" + (f" · seed {seed}" if self.is_random else "")
        return self.evaluated_by().node(
            label,
            {
                "task": site.facts.key,
                "embedding": {
                    "stores": stores,
                    "method": to_plain(self.vector_identity()),
                    "made_from": source,
                },
            },
            inputs,
            kinds=[
                *(recipe for s in site.roles.values() for recipe in s.recipes),
                self.vector_identity(),
                site.config,
            ],
            run_facts={
                **next(iter(readings)).run_facts,
                "stores": {role: s.names for role, s in site.roles.items()},
                "method": name,
                "task": site.task,
                "seed": seed,
                "config": site.config.model_dump(mode="json"),
                "instructions": site.instructed,
            },
            after=[a for r in readings for a in r.after],
        )
