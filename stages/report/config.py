"""Title, layout and averages of a report."""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from permafrost.stages.bounds import MAX_TEXTS
from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

AverageRule = Literal["same_metric", "any_metric", "mteb", "none"]
"""Which tasks are averaged: only those scored by one metric, or all, as GLUE does, or none. `mteb`: all, and
beside the mean over tasks the mean over kinds of task, as its leaderboard has both."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CurveAxis(_Config):
    """The tasks are one task at several values of a parameter (e.g. the share of distractors)."""

    kind: Literal["curve"] = "curve"
    label: str = Field(min_length=1)
    """Name of the parameter, as written under the axis."""
    values: dict[str, FiniteFloat] = Field(min_length=1)
    """Task to its value of the parameter. Tasks that are not named here are in the tables only."""

    def require(self, tasks: Collection[str]) -> None:
        """Check that what is placed is there.

        Raises:
            InputError: a value for a task that is not among `tasks`.
        """
        if unknown := [task for task in self.values if task not in tasks]:
            raise InputError(
                f"report.x_axis.values places the task {quoted(unknown[0])}, but there are results of "
                f"{', '.join(tasks)}; rename or remove it"
            )

    def among(self, tasks: Collection[str]) -> "CurveAxis":
        """The axis with these tasks only."""
        values = {task: x for task, x in self.values.items() if task in tasks}
        return self.model_copy(update={"values": values})


class TasksAxis(_Config):
    """The tasks stand side by side."""

    kind: Literal["tasks"] = "tasks"

    def require(self, tasks: Collection[str]) -> None:
        """It places no task by its name."""
        return

    def among(self, tasks: Collection[str]) -> "TasksAxis":
        """The same: it shows what is there."""
        return self


XAxis = Annotated[CurveAxis | TasksAxis, Field(discriminator="kind")]


class ReportConfig(_Config):
    """Everything about a report that is chosen, not measured."""

    title: str = Field(min_length=1)
    description: str = ""
    """Paragraphs, separated by blank lines. `code`, **bold** and lists of `- ` lines are understood."""
    x_axis: XAxis = TasksAxis()
    n_examples: int = Field(default=4, ge=0, le=MAX_TEXTS)
    """Test texts whose token weights are shown, and as many whose stored attention rows are, taken from the
    tasks in turn."""
    n_errors: int = Field(default=5, ge=0, le=MAX_TEXTS)
    """Worst errors shown of each task."""
    averages: AverageRule = "same_metric"
    """Means over the tasks; tasks that differ in a parameter have none."""
    bootstrap: BootstrapConfig = BootstrapConfig()
    """Intervals, and tests against the best method of each task."""
