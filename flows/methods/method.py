"""What every method of an experiment is asked: what it reads, what it is scored on, and its nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Cell
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.metrics.records import Role
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from permafrost.flows.methods.evaluated import EvaluatedMethod
    from permafrost.stages.finetune.tuning import Tuning

CLASSES: tuple[TaskKind, ...] = ("classification", "pair_classification")


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
    """What it, or any candidate of its grid, reads of a backbone with these sizes."""
    tries_layers: bool
    """Whether dev chooses among candidates that read different ones."""


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

    @property
    def tunes_backbone(self) -> bool:
        """Whether the backbone that it reads was trained, by itself or by another."""
        tuning = self.tuning()
        return self.adapted_backbone is not None or (tuning is not None and tuning.changes_states)

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
        chance: every control, unless a kind says otherwise, but for two cases in which it compares vectors
        that agree with the answer whatever the labels were. On graded pairs a score is a cosine, or comes
        of cosines; on a task of an evaluation (None) only its vectors are read."""
        is_compared = task is None or task.task_kind == "similarity"
        return self.role_on(task) == "control" and not is_compared

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
