"""Where an artifact stands in an experiment, in the names that its YAML gives."""

from typing import Any

from pydantic import BaseModel, ConfigDict

RECORDED = "origins"
"""Under which an artifact's provenance has them."""

WEIGHTS_OF = "report.weights_of"
"""The one field of another section that a score of a head may be made from; in `written` under this name."""


class Origin(BaseModel):
    """One place of an artifact. Never part of a key: equal work of several places is one artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str | None = None
    """Its name; None if it is not known, as in what earlier versions made, and so is the next."""
    name: str | None = ""
    """Of a method, pretraining, recipe, adapted backbone, or of probe and curve; empty where nothing is
    named."""
    task: str | None = None
    seed: int | None = None
    """None where nothing is drawn."""
    choice: str = ""
    """What tells a candidate of a grid from the others."""
    written: dict[str, Any] = {}
    """The section of the experiment that it is made from, defaults included, and `WEIGHTS_OF` where it is
    read."""

    def stands_with(self, other: "Origin") -> bool:
        """Whether both are the same method, task and seed, of whatever experiment."""
        names = ((self.name, other.name), (self.seed, other.seed))
        return self.task == other.task and all(a == b for a, b in names if None not in (a, b))

    def __str__(self) -> str:
        place = " on ".join(n for n in (self.name, self.task) if n)
        seed = None if self.seed is None else f"seed {self.seed}"
        return ", ".join(n for n in (place, seed, self.choice) if n)
