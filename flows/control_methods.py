"""Baselines of an experiment that see no backbone: the number of words, and the words without their order."""

from typing import Literal

from pydantic import BaseModel

from stages.controls import BagOfWordsControl, ControlConfig, LengthControl
from stages.corpus.config import CorpusConfig, surface_at_chance
from stages.report.cells import Role


class _SurfaceMethod(BaseModel):
    role: Literal["by_task", "baseline", "control"] = "by_task"
    """A `control` must sit at chance; a `baseline` is what methods have to beat. `by_task` is a control where
    the task is made so that words and length carry nothing (signal dilution), and else a baseline."""

    def role_on(self, task: CorpusConfig) -> Role:
        """What it is on a task."""
        if self.role == "by_task":
            return "control" if surface_at_chance(task) else "baseline"
        return self.role


class LengthMethod(_SurfaceMethod, LengthControl):
    """Sees the number of words and of characters only."""

    @property
    def config(self) -> ControlConfig:
        """What the stage computes, which the role is no part of."""
        return LengthControl.model_validate(self.model_dump(exclude={"role"}))


class BagOfWordsMethod(_SurfaceMethod, BagOfWordsControl):
    """Sees how often each word of the training texts occurs, but not where."""

    @property
    def config(self) -> ControlConfig:
        """What the stage computes, which the role is no part of."""
        return BagOfWordsControl.model_validate(self.model_dump(exclude={"role"}))
