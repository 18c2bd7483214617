"""The same answer to every example: `kind: constant`."""

from typing import Literal

from pydantic import ConfigDict

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import Method
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.metrics.records import Role
from permafrost.stages.scoring.constant import (
    ANSWERED,
    ConstantConfig,
    require_constant,
    run_constant,
)
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class ConstantMethod(Method):
    """The best constant answer of train, once per task with classes or grades."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["constant"] = "constant"
    metric: Metric | None = None
    """By which the answer is chosen and which is reported; the task's own if not given."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with classes or grades if not given."""

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Classes and grades."""
        return ANSWERED

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A baseline, as its score is no chance: it is what everything has to beat."""
        return "baseline"

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """Chosen and scored on a task."""
        config = ConstantConfig(metric=self.metric or cell.metric)
        return (RunConstant.node(f"constant {cell.method} · {cell.task}", config, (cell.corpus,)),)


class RunConstant(Stage):
    """Chooses an answer on train, scores it on dev and test."""

    name = "control"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        config = ConstantConfig.model_validate(node.config)
        run_constant(config, context.corpus(node.input("corpus"))).save(draft.folder)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = ConstantConfig.model_validate(node.config)
        require_constant(config, context.corpus(node.input("corpus")))
