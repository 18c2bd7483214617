"""Title, layout and averages of a report."""

from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, model_validator

from permafrost.stages.bounds import MAX_TEXTS
from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.report.claim_kinds import AnyClaim
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

AverageRule = Literal["same_metric", "any_metric", "mteb", "evaluations", "none"]
"""Which tasks are averaged: `same_metric`, all tasks if they have one metric; `any_metric`, all tasks, as in
GLUE; `mteb`, all tasks, with the mean over kinds of task beside the mean over tasks, as on MTEB's
leaderboard; `evaluations`, as `mteb`, without the tasks on which methods are trained; or `none`."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CurveAxis(_Config):
    """The tasks are one task at several values of a parameter (e.g. the share of distractors)."""

    kind: Literal["curve"] = "curve"
    label: str = Field(min_length=1)
    """Name of the parameter, as written under the axis."""
    values: dict[str, FiniteFloat] = Field(min_length=1)
    """Value of the parameter by task. Tasks that are not named here are in the tables only."""

    link: ClassVar[str] = "Curve"
    """What the table of contents calls the main figure."""
    marks: ClassVar[str] = "lines join the means of the tasks"
    """What the figure's marks are, for its caption."""
    has_averages: ClassVar[bool] = False
    """Whether a mean over the tasks says anything."""
    fields: ClassVar[tuple[str, ...]] = ()
    """Settings of methods that lie on the axis."""

    @property
    def how(self) -> str:
        """How the figure shows the metric."""
        return f"against {self.label}"

    @property
    def heading(self) -> str:
        """The figure's heading."""
        return f"Against {self.label}"

    @property
    def positions(self) -> Mapping[str, float]:
        """Where tasks lie on the axis."""
        return self.values

    def require_place(self, value: float, method: str) -> None:
        """Nothing to check, as no method lies on the axis."""
        return

    def require(self, tasks: Collection[str]) -> None:
        """Check that every task with a value exists.

        Raises:
            InputError: there is a value for a task that is not among `tasks`.
        """
        if unknown := [task for task in self.values if task not in tasks]:
            raise InputError(
                f"report.x_axis.values places the task {quoted(unknown[0])}, but there are results of "
                f"{', '.join(tasks)}; rename or remove it"
            )

    def among(self, tasks: Collection[str]) -> "CurveAxis | TasksAxis":
        """The axis with these tasks only; tasks side by side where it places none of them."""
        values = {task: x for task, x in self.values.items() if task in tasks}
        return self.model_copy(update={"values": values}) if values else TasksAxis()


class TasksAxis(_Config):
    """The tasks are shown side by side."""

    kind: Literal["tasks"] = "tasks"

    link: ClassVar[str] = "By task"
    heading: ClassVar[str] = "By task"
    how: ClassVar[str] = "by task"
    marks: ClassVar[str] = "marks are means"
    label: ClassVar[str] = "task"
    has_averages: ClassVar[bool] = True
    fields: ClassVar[tuple[str, ...]] = ()
    positions: ClassVar[None] = None
    """Tasks have no values."""

    def require_place(self, value: float, method: str) -> None:
        """Nothing to check, as no method lies on the axis."""
        return

    def require(self, tasks: Collection[str]) -> None:
        """Nothing to check, as no task is named."""
        return

    def among(self, tasks: Collection[str]) -> "TasksAxis":
        """The axis itself, as it shows whatever tasks there are."""
        return self


class SweepAxis(_Config):
    """The methods are one method at several values of a setting: a curve for each, a panel for each task."""

    kind: Literal["sweep"] = "sweep"
    label: str = Field(min_length=1)
    """Name of the setting, as written under the axis."""
    fields: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """The setting, as a path from a method (`layers`, `head.tau`, `recipe.size`): what a method names, a
    recipe or another method, stands in the place of its name, and `auto` and its like are numbers. Methods
    that differ in this field alone are a curve. Of several fields each has curves of its own, and a method
    may lie on more than one. Other methods are level lines."""
    scale: Literal["linear", "log"] = "linear"
    """Of the axis."""

    link: ClassVar[str] = "Curves"
    marks: ClassVar[str] = (
        "lines join methods that differ in this setting alone, level lines are methods without it"
    )
    has_averages: ClassVar[bool] = True
    positions: ClassVar[None] = None

    @property
    def how(self) -> str:
        """How the figure shows the metric."""
        return f"against {self.label}"

    @property
    def heading(self) -> str:
        """The figure's heading."""
        return f"Against {self.label}"

    def require_place(self, value: float, method: str) -> None:
        """Check that a value has a place on the axis.

        Raises:
            InputError: it is not positive, and the scale is logarithmic.
        """
        if self.scale == "log" and value <= 0:
            raise InputError(
                f"report.x_axis.scale is 'log', but {quoted(method)} lies at {value:g}; write scale: linear"
            )

    def require(self, tasks: Collection[str]) -> None:
        """Nothing to check, as no task is named."""
        return

    def among(self, tasks: Collection[str]) -> "SweepAxis":
        """The axis itself, as it shows whatever tasks there are."""
        return self


XAxis = Annotated[CurveAxis | TasksAxis | SweepAxis, Field(discriminator="kind")]


class Residuals(_Config):
    """A method on graded pairs whose predictions are held against the grades on one scale."""

    method: str = Field(min_length=1)
    """Its name in the experiment."""
    tasks: tuple[str, ...] = ()
    """On which tasks; on all with graded pairs if none is named. Name them where their scales differ."""
    predictions: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    """Lowest and highest prediction there can be; (-1, 1) for cosines."""
    labels: tuple[FiniteFloat, FiniteFloat] = (0.0, 5.0)
    """Lowest and highest grade."""

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "Residuals":
        for name, (low, high) in (("predictions", self.predictions), ("labels", self.labels)):
            if not low < high:
                raise ValueError(
                    f"{name} goes from {low:g} to {high:g}; give the lowest, then the highest"
                )
        return self


_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class ReportConfig(_Config):
    """Settings of a report."""

    title: str = Field(min_length=1)
    """Heading of the page and of the table."""
    description: str = ""
    """Paragraphs, separated by blank lines. `code`, **bold** and lists of `- ` lines are understood."""
    x_axis: XAxis = TasksAxis()
    """Whether tasks stand side by side, or are one task at several values of a parameter, or methods are one
    method at several values of a setting."""
    n_examples: int = Field(default=4, ge=0, le=MAX_TEXTS)
    """Number of test texts whose token weights are shown, of those whose stored attention rows are shown, and
    of test cases whose graphs are drawn, taken from the tasks in turn."""
    graphs_of: dict[
        str, Annotated[tuple[_Words, ...], Field(min_length=1, max_length=MAX_TEXTS)]
    ] = {}
    """By task, words of test cases: of each the first case with them has its graphs shown, in place of cases
    spread evenly over test."""
    weights_of: str | None = Field(default=None, min_length=1)
    """A task whose texts are shown, before those of test, with the token weights of every head that reads the
    experiment's backbone under its own recipe, one row per token; a note says so where none does. No method
    has to be scored on it. Of more than 128 texts so many are shown, spread evenly."""
    n_errors: int = Field(default=5, ge=0, le=MAX_TEXTS)
    """Number of worst errors shown per task."""
    averages: AverageRule = "same_metric"
    """Means over the tasks; there are none if the tasks are values of a parameter."""
    bootstrap: BootstrapConfig = BootstrapConfig()
    """Confidence intervals, and tests against the best method of each task."""
    claims: tuple[AnyClaim, ...] = ()
    """What papers say of the methods, each tested on the test sets: confirmed, contrary, or neither."""
    residuals: tuple[Residuals, ...] = ()
    """Methods on graded pairs whose differences from the grades are shown on one scale (mean, deviation, the
    worst pairs, a text with itself), and on the clean part of test against random parts of its size."""
