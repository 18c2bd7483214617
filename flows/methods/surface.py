"""Methods that see no backbone: `kind: length` sees the number of words, `kind: bag_of_words` the words
without their order."""

from typing import Literal

from pydantic import TypeAdapter

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import CLASSES, Method
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.controls import (
    BagOfWordsControl,
    ControlConfig,
    LengthControl,
    require_control,
    run_control,
)
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class _SurfaceMethod(Method):
    role: Literal["by_task", "baseline", "control"] = "by_task"
    """A `control` must sit at chance; a `baseline` is what methods have to beat. `by_task` is a control where
    the task is made so that words and length carry nothing (signal dilution), and else a baseline."""

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Classes."""
        return CLASSES

    def role_on(self, task: CorpusConfig | None) -> Role:
        """As given, or as the task is made."""
        if self.role == "by_task":
            at_chance = task is not None and task.surface_at_chance
            return "control" if at_chance else "baseline"
        return self.role

    def control_config(self, cell: Cell) -> ControlConfig:
        """What the stage computes, by the task's own metric unless this method names one."""
        fields = self.model_dump(exclude={"role"})
        if "metric" not in self.model_fields_set and cell.named_metric is not None:
            fields["metric"] = cell.named_metric
        return TypeAdapter[ControlConfig](ControlConfig).validate_python(fields)

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """Fitted and scored on a task."""
        label = f"control {cell.method} · {cell.task}"
        node = RunControl.node(label, self.control_config(cell), (cell.corpus,))
        return (node,)


class LengthMethod(LengthControl, _SurfaceMethod):
    """Sees the number of words and of characters only."""

    kind: Literal["length"] = "length"


class BagOfWordsMethod(BagOfWordsControl, _SurfaceMethod):
    """Sees how often each word of the training texts occurs, but not where."""

    kind: Literal["bag_of_words"] = "bag_of_words"


class RunControl(Stage):
    """Fits a classifier on the surface of texts, chooses on dev, scores test once."""

    name = "control"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        run_control(_config(node), context.corpus(node.input("corpus"))).save(draft.folder)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        require_control(_config(node), context.corpus(node.input("corpus")))


def _config(node: Node) -> ControlConfig:
    return TypeAdapter[ControlConfig](ControlConfig).validate_python(node.config)
