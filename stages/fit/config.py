"""What a fit is: a head, its data and how it is trained, and the grid it chooses from on dev."""

import itertools
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS
from permafrost.stages.fit.grid import flat, replaced
from permafrost.stages.fit.losses import CrossEntropy, LossConfig
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.fit.optim import OptimConfig
from permafrost.stages.heads.head import HeadConfig
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class FitConfig(BaseModel):
    """One head on one stored array, or a grid of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    head: HeadConfig
    layer: str = "hidden/6"
    """The stored array that the head reads."""
    optim: OptimConfig = OptimConfig()
    loss: LossConfig = CrossEntropy()
    """Goes with the kind of the corpus: `cross_entropy` for classes, `cosine_mse` for graded pairs,
    `contrastive` for pairs without labels."""
    seed: int = Field(ge=0, le=MAX_SEED)
    """Initial weights, order of the batches, and the permutation of `labels="shuffled"`."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` is the control: the labels of train and of dev are permuted (of pairs without labels,
    the second texts with their negatives), test is untouched."""
    metric: Metric = "accuracy"
    """What is compared on dev and reported. `f1` is that of class 1 of two, `spearman_pearson` the mean
    of both (GLOT's choice), `mrr` the mean reciprocal rank of the partner of a pair."""
    grid: dict[str, tuple[JsonValue, ...]] = {}
    """Dotted field to the values to try, for example `{"layer": ["hidden/1"], "head.tau": [0.3]}`."""
    grid_patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """A candidate ends after this many epochs if none of them beats, on dev, every epoch of the
    candidates before it; None never. It may miss a candidate that is slow to start."""

    def candidates(self) -> tuple["FitConfig", ...]:
        """Every combination of the grid, without a grid of its own; this config when there is none.

        Combinations are numbered with the fields in alphabetical order, the last one fastest, so
        that two spellings of one grid agree on which candidate comes first.

        Raises:
            InputError: a field that does not exist, no values, or a value the field refuses.
        """
        plain = self.model_dump(mode="json", exclude={"grid"})
        fields = sorted(self.grid)
        for field in fields:
            if not self.grid[field]:
                raise InputError(f"grid.{field} has no values; give at least one or remove it")
        found: list[FitConfig] = []
        for values in itertools.product(*(self.grid[field] for field in fields)):
            changed: dict[str, Any] = plain
            for field, value in zip(fields, values, strict=True):
                changed = replaced(changed, field, value)
            try:
                found.append(FitConfig.model_validate(changed))
            except ValidationError as error:
                first = error.errors()[0]
                tried = ", ".join(f"{f}={quoted(v)}" for f, v in zip(fields, values, strict=True))
                where = ".".join(str(part) for part in first["loc"])
                raise InputError(
                    f"the grid's candidate {tried} is not valid at {where}: {first['msg']}"
                ) from error
        return tuple(found)

    def arrays(self) -> tuple[str, ...]:
        """Every array that a candidate reads, in order of first use."""
        return tuple(dict.fromkeys(candidate.layer for candidate in self.candidates()))

    def choice(self) -> dict[str, JsonValue]:
        """Layer and settings of head, training and loss by dotted name, for tables."""
        plain = self.model_dump(mode="json", include={"head", "optim", "loss"})
        return {"layer": self.layer} | dict(flat(plain))
