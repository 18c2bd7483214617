"""Linear classifiers on frozen vectors: `kind: linear`."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import CLASSES, Method
from permafrost.flows.nodes.reading import features
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.embed.aggregations import AGGREGATIONS
from permafrost.stages.embed.aggregations import Method as EmbedName
from permafrost.stages.embed.config import Combine, EmbedConfig, required_arrays
from permafrost.stages.extraction.capture import index_as_text
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.fit.metrics import Metric
from permafrost.stages.linear.config import (
    Classifier,
    ClassMetric,
    LinearConfig,
    PairFeatures,
    Strengths,
)
from permafrost.stages.linear.fitting import linear_examples, run_linear
from permafrost.stages.metrics.records import Role
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


def _several(value: Any) -> Any:
    """One choice of layers, or a list of candidates; an index may be written as a number."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(map(index_as_text, values))


class ClassifierFields(BaseModel):
    """What every linear classifier of an experiment has, whatever its vectors are."""

    classifier: Classifier = "logistic"
    """`logistic` regression, or a linear `svm`."""
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

    def classifier_fields(self, metric: Metric) -> dict[str, Any]:
        """Those of `ClassifierConfig` but for the seed, on a task whose own metric is given."""
        shared = ("classifier", "c", "pair_features", "labels", "max_iter")
        return {n: getattr(self, n) for n in shared} | {"metric": self.metric or metric}


class LinearMethod(Method, ClassifierFields):
    """A linear classifier on vectors from cached features, once per task with classes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear"] = "linear"
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""
    method: EmbedName = Field(default_factory=lambda: AGGREGATIONS.validate({"kind": "mean"}))
    """How the vectors are made; this and the next four are as in methods of kind `embed`."""
    layers: Annotated[tuple[str, ...], BeforeValidator(_several)] = Field(
        default=("default",), min_length=1
    )
    """Also a list of candidates such as `[2, 4, "4-6", half]`, of which dev chooses one together with `c`."""
    of: Literal["hidden", "values"] = "hidden"
    """Hidden states, or attention values."""
    combine: Combine = "average"
    """How several layers become one vector."""
    normalise: Literal["none", "l2"] = "none"
    """`l2` divides each vector by its length."""
    backbone: str | None = None
    """Name of an adapted backbone to read in place of the experiment's; see `adapted`."""

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
        fields = self.classifier_fields(metric)
        return LinearConfig(**fields, vectors=self.vectors, seed=seed if self.is_random else 0)

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Classes."""
        return CLASSES

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """Whether the seed plays a role: that of the permutation of the labels."""
        return self.labels == "shuffled"

    @property
    def adapted_backbone(self) -> str | None:
        """As given."""
        return self.backbone

    def recipes(self) -> dict[str, str]:
        """Its own."""
        return {"": self.recipe}

    def reads(self, sizes: BackboneSizes) -> dict[str, tuple[str, ...]]:
        """What any candidate needs."""
        arrays = dict.fromkeys(a for v in self.vectors for a in required_arrays(v, sizes))
        return {self.recipe: tuple(arrays)}

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if it is fitted on shuffled labels."""
        return "control" if self.labels == "shuffled" else "method"

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """A linear classifier, fitted and scored on a task."""
        arrays = self.reads(cell.upstream.sizes)[self.recipe]
        read = cell.reading(self.recipe, arrays)
        names = {k: v for k, v in cell.names.items() if k != "seed" or self.is_random}
        seeded = f" · seed {cell.seed}" if self.is_random else ""
        node = RunLinear.node(
            f"linear {cell.method} · {cell.task}{seeded}",
            self.linear_config(cell.metric, cell.seed),
            (cell.corpus, *read.inputs),
            run_facts={**read.run_facts, "names": names},
            after=read.after,
        )
        return (node,)


class RunLinear(Stage):
    """Fits a linear classifier on train, chooses on dev, scores test once."""

    name = "linear"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        config = LinearConfig.model_validate(node.config)
        corpus = context.corpus(node.input("corpus"))
        result = run_linear(config, features(node, context), corpus, progress)
        result.save(draft.folder)
        kept = ("metric", "dev", "test", "converged")
        metrics = result.scores.metrics
        draft.summary = {**node.run_facts["names"], **{k: metrics[k] for k in kept}}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = LinearConfig.model_validate(node.config)
        linear_examples(config, context.corpus(node.input("corpus")))
