"""What every method of an experiment is asked: what it reads, what it is scored on, and its nodes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from permafrost.flows.graph import Input, Node
from permafrost.flows.methods.reading import Reading
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.recipes import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit import Metric
from permafrost.stages.fit.metrics import DEFAULT_METRIC
from permafrost.stages.metrics.records import Role

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
        """What several heads start from."""
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

    @property
    def names(self) -> dict[str, str | int]:
        """For summaries."""
        return {"method": self.method, "task": self.task, "seed": self.seed}


class Method(ABC):
    """One entry of `methods`."""

    kind: Any
    """A string; a `Literal` in each kind."""

    @property
    @abstractmethod
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Kinds of task that it is scored on."""

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """The only tasks that it is scored on; None for every task of its kinds."""
        return None

    @property
    def is_random(self) -> bool:
        """Whether it runs once per seed."""
        return False

    def recipes(self) -> dict[str, str]:
        """Names of the recipes it reads, by the field that names them."""
        return {}

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

    def role_on(self, task: CorpusConfig | None) -> Role:
        """What it is in the report on a task of the experiment, or on one of an evaluation (None)."""
        return "method"

    def loss_on(self, kind: TaskKind) -> str | None:
        """What its training makes small; None where nothing is trained in epochs."""
        return None

    @abstractmethod
    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """What is fitted, or made, on a task. The last is the one that counts; it may choose from the
        others."""

    def score_node(self, cell: Cell, fitted: Node) -> Node | None:
        """What holds its metrics; None where the last of `fit_nodes` does."""
        return None
