"""Linear methods of an experiment: a linear probe or a linear SVM on frozen vectors."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from flows.recipes import DEFAULT_RECIPE
from stages.bounds import MAX_STEPS
from stages.embed import EmbedConfig, Method
from stages.embed.config import Combine
from stages.extraction.capture import index_as_text
from stages.fit import Metric
from stages.linear import Classifier, ClassMetric, LinearConfig, PairFeatures
from stages.linear.config import Strengths


def _several(value: Any) -> Any:
    """One choice of layers, or a list of candidates; an index may be written as a number."""
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(map(index_as_text, given))


class LinearMethod(BaseModel):
    """A linear classifier on vectors from cached features, once per task with classes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear"] = "linear"
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""
    method: Method = "mean"
    """How the vectors are made; this and the next four as of methods of kind `embed`."""
    layers: Annotated[tuple[str, ...], BeforeValidator(_several)] = Field(
        default=("default",), min_length=1
    )
    """Also a list of candidates such as `[2, 4, "4-6", half]`, of which dev chooses one together with `c`."""
    of: Literal["hidden", "values"] = "hidden"
    combine: Combine = "average"
    normalise: Literal["none", "l2"] = "none"
    classifier: Classifier = "logistic"
    c: Strengths = (0.01, 0.1, 1.0, 10.0)
    """Inverse regularisation strengths, of which dev chooses one."""
    pair_features: PairFeatures = "full"
    """What the classifier sees of a pair (u, v): [u, v, |u - v|, u * v], or with `concat` [u, v]."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control, once per seed: it must sit at chance."""
    metric: ClassMetric | None = None
    """What is compared on dev and reported; the task's own if not given."""
    max_iter: int = Field(default=5000, ge=1, le=MAX_STEPS)
    """Steps of the solver, at most; `converged` in metrics.json says whether it needed fewer."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with classes if not given."""

    @model_validator(mode="after")
    def _describes_a_stage(self) -> "LinearMethod":
        try:
            self.linear_config("accuracy", 0)
        except ValidationError as error:
            reasons = [e["msg"].removeprefix("Value error, ") for e in error.errors()]
            raise ValueError("; ".join(reasons)) from error
        return self

    @property
    def vectors(self) -> tuple[EmbedConfig, ...]:
        """The ways to make the vectors, of which one is chosen."""
        shared = {n: getattr(self, n) for n in ("method", "of", "combine", "normalise")}
        return tuple(EmbedConfig(**shared, layers=layers) for layers in self.layers)

    def linear_config(self, metric: Metric, seed: int) -> LinearConfig:
        """The complete config of the stage on a task whose own metric is given."""
        shared = ("classifier", "c", "pair_features", "labels", "max_iter")
        fields = {name: getattr(self, name) for name in shared}
        fields["metric"] = self.metric or metric
        return LinearConfig(**fields, vectors=self.vectors, seed=seed if self.is_random else 0)

    @property
    def is_random(self) -> bool:
        """Whether the seed plays a role: that of the permutation of the labels."""
        return self.labels == "shuffled"
