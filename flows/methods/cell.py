"""One method on one task with one seed, and what an experiment gives it to build its nodes upon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from permafrost.flows.graph import Input, Node
from permafrost.flows.nodes.reading import Reading
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractTarget, ResolvedBackbone
from permafrost.stages.fit.metrics import DEFAULT_METRIC, Metric
from permafrost.stages.freeze.config import Correlation

if TYPE_CHECKING:
    from permafrost.flows.methods.method import Method


CHOSEN = "chosen"
"""The input of a score that is the corpus of texts whose token weights are kept for the report."""


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
    weights_of: str | None = None
    """The task whose texts the report shows with the token weights of heads, if any."""
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
    def correlation(self) -> Correlation:
        """The named one, for methods that take one correlation alone; Pearson's if none or both are named."""
        return "spearman" if self.named_metric == "spearman" else "pearson"

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
