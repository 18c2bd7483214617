"""Experiment files: one complete, runnable description each."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from flows.control_methods import BagOfWordsMethod, LengthMethod
from flows.evaluations import Evaluation, check_evaluations, evaluated_methods
from flows.linear_method import LinearMethod
from flows.probes import PROBED, ProbeConfig, probe_recipes
from flows.recipes import DEFAULT_RECIPE, RecipeField
from flows.wrong_fields import wrong_fields
from flows.yaml_reader import MAX_FILE_BYTES, MAX_NESTING, read_yaml
from stages.bounds import MAX_BYTES, MAX_LAYERS, MAX_SEED, MAX_STEPS
from stages.controls import ControlConfig
from stages.corpus.columns import TaskKind
from stages.corpus.config import CorpusConfig, task_kind
from stages.embed import EmbedConfig
from stages.extraction.backbone import BackboneConfig
from stages.extraction.capture import Capture, CaptureItem, LayersText, in_order
from stages.extraction.recipes import PlainRecipe, Recipe
from stages.extraction.sizes import BackboneSizes
from stages.extraction.target import ExtractRuntime
from stages.fit import FitConfig, LossConfig, Metric, OptimConfig
from stages.fit.losses import LOSS_OF
from stages.fit.metrics import DEFAULT_METRIC, METRICS
from stages.freeze import AutoencoderConfig, PairFitConfig, PairHeadConfig
from stages.heads import HeadConfig
from stages.linear import LinearConfig
from stages.report.config import ReportConfig
from storage.errors import InputError
from storage.features.identity import FloatName
from storage.features.layout import Codec
from storage.paths import checked_path
from storage.quoting import LIMIT, quoted


class HeadMethod(BaseModel):
    """A head trained on cached features, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["head"] = "head"
    head: HeadConfig
    layer: str
    """Stored array that the head reads, e.g. `hidden/6`."""
    optim: OptimConfig = OptimConfig()
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance."""
    grid: dict[str, tuple[JsonValue, ...]] = {}
    """Dotted field to candidate values; the best on dev is kept."""
    metric: Metric | None = None
    """What is compared on dev and reported; the task's own if not given."""
    loss: LossConfig | None = None
    """Goes with the kind of task: `cross_entropy` for classes, `cosine_mse` for graded pairs, `contrastive`
    for pairs without labels. Not given, it is that of each task with labels."""
    grid_patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task that goes with the loss if not given."""

    def fit_config(self, kind: TaskKind, metric: Metric, seed: int) -> FitConfig:
        """The complete config of one fit on a task of this kind, whose own metric is given."""
        fields = {name: getattr(self, name) for name in FitConfig.model_fields if name != "seed"}
        fields["metric"] = self.metric or metric
        fields["loss"] = self.loss or {"kind": LOSS_OF[kind]}
        return FitConfig(**fields, seed=seed)


class EmbedMethod(EmbedConfig):
    """Vectors from cached features without training, compared by their cosine."""

    kind: Literal["embed"] = "embed"
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""
    tasks: tuple[str, ...] | None = None
    """Only these tasks; every task with graded pairs if not given."""
    metric: Literal["spearman", "pearson"] = "spearman"
    prompts: dict[Literal["query", "document"], str] = Field(default_factory=dict)
    """Recipes, by name, for queries and documents of evaluations that search; `recipe` for other texts."""

    @property
    def config(self) -> EmbedConfig:
        """How the vectors are made."""
        return EmbedConfig(**{name: getattr(self, name) for name in EmbedConfig.model_fields})


class Latents(BaseModel):
    """One row per text and layer: what the layer-wise heads of FREEZE! read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str = DEFAULT_RECIPE
    layers: LayersText = "all"
    """Hidden states: `all` (blocks 1..L), `half`, indices and ranges."""
    at: Literal["last", "readout", "mean"] = "last"
    """FREEZE! reads the last token."""

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Pooled arrays, one per layer.

        Raises:
            InputError: a layer that the backbone does not have.
        """
        layers = f"1-{sizes.n_layers}" if self.layers == "all" else self.layers
        item = CaptureItem(what="hidden", layers=layers, at=self.at)
        return in_order(name.text for name in item.names(sizes))


class Pretraining(BaseModel):
    """Layer autoencoders, trained once on generic texts and used by every head that names them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    latents: Latents = Latents()
    autoencoder: AutoencoderConfig = AutoencoderConfig(seed=0)


class LayersMethod(BaseModel):
    """A pair head on the latents of every layer (FREEZE!), once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["layers"] = "layers"
    head: PairHeadConfig
    latents: Latents = Latents()
    encoders: str | None = None
    """Name of a pretraining whose encoders the head starts from."""
    label_range: tuple[float, float] = (0.0, 5.0)
    """Lowest and highest label; predictions lie between 0 and 1."""
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=128, ge=2, le=MAX_STEPS)
    max_epochs: int = Field(default=150, ge=1, le=MAX_STEPS)
    loss: Literal["mse", "log_variance"] = "log_variance"
    metric: Literal["pearson", "spearman"] = "pearson"
    evaluate_every: int = Field(default=10, ge=1, le=MAX_STEPS)

    @property
    def recipe(self) -> str:
        """Whose latents it reads."""
        return self.latents.recipe

    def fit_config(self, seed: int) -> PairFitConfig:
        """The complete config of one fit."""
        fields = {n: getattr(self, n) for n in PairFitConfig.model_fields if n != "seed"}
        return PairFitConfig(**fields, seed=seed)


MethodConfig = Annotated[
    HeadMethod | EmbedMethod | LinearMethod | LayersMethod | LengthMethod | BagOfWordsMethod,
    Field(discriminator="kind"),
]
SEEDED = HeadMethod | LayersMethod
"""Methods that are trained, once per seed."""


def _task_kinds(method: MethodConfig) -> tuple[TaskKind, ...]:
    """Kinds of task that a method is scored on."""
    if isinstance(method, HeadMethod):
        if method.loss is None:
            return tuple(kind for kind in LOSS_OF if kind != "unlabelled")
        return tuple(kind for kind, loss in LOSS_OF.items() if loss == method.loss.kind)
    if isinstance(method, EmbedMethod | LayersMethod):
        return ("similarity",)
    return ("classification", "pair_classification")


class RunRuntime(BaseModel):
    """How an experiment runs; nothing here is part of any key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(default=0, ge=0, le=MAX_LAYERS)
    """Stages side by side; 0 means one per CPU core."""
    memory_bytes: int = Field(default=1 << 30, ge=1, le=MAX_BYTES)
    """Features of one reader held in memory, at most; beyond, windows of segments are streamed."""
    device: str = "auto"
    """Where heads are trained and scored: auto, cpu, cuda, cuda:1, ..."""
    extract: ExtractRuntime = ExtractRuntime()

    @property
    def n_workers(self) -> int:
        """Stages side by side."""
        return self.workers or len(os.sched_getaffinity(0))


class Experiment(BaseModel):
    """What is computed from which texts, and how it is reported."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=LIMIT)
    backbone: BackboneConfig
    recipe: RecipeField = PlainRecipe()
    recipes: dict[str, RecipeField] = {}
    """More recipes by name; methods and probes say which one they read."""
    capture: Capture | None = None
    """What heads may read under `recipe`. What embed methods and probes read is added by itself."""
    store_dtype: FloatName = "float16"
    codec: Codec = "none"
    tasks: dict[str, CorpusConfig] = {}
    metrics: dict[str, Metric] = {}
    """What heads and linear methods are compared by, for tasks where it is not accuracy, or the mean of both
    correlations."""
    methods: dict[str, MethodConfig] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...] = Field(
        default=(0, 1, 2), min_length=1, max_length=1_000
    )
    pretrainings: dict[str, Pretraining] = {}
    probes: dict[str, ProbeConfig] = {}
    evaluations: dict[str, Evaluation] = {}
    report: ReportConfig
    runtime: RunRuntime = RunRuntime()

    @model_validator(mode="after")
    def _names_exist(self) -> "Experiment":
        for field in ("recipes", "tasks", "methods", "pretrainings", "probes", "evaluations"):
            for name in getattr(self, field):
                if not 0 < len(name) <= LIMIT or "\0" in name:
                    raise ValueError(
                        f"{field} has the name {quoted(name)}; names have 1 to {LIMIT} characters, none of "
                        "them NUL"
                    )
        if not self.tasks and not self.evaluations:
            raise ValueError("there are neither tasks nor evaluations; give at least one")
        named = [(f"methods.{n}", m.recipe) for n, m in self.embed_methods.items()]
        named += [
            (f"methods.{n}.prompts.{role}", recipe)
            for n, m in self.embed_methods.items()
            for role, recipe in m.prompts.items()
        ]
        named += [(f"methods.{n}", m.recipe) for n, m in self.linear_methods.items()]
        named += [(f"methods.{n}", m.recipe) for n, m in self.layers_methods.items()]
        named += [(f"pretrainings.{n}", p.latents.recipe) for n, p in self.pretrainings.items()]
        named += [(f"probes.{n}", r) for n, p in self.probes.items() for r in probe_recipes(p)]
        for where, recipe in named:
            if recipe not in self.all_recipes:
                raise ValueError(
                    f"{where} reads the recipe {quoted(recipe)}; there are {', '.join(self.all_recipes)}"
                )
        if DEFAULT_RECIPE in self.recipes:
            raise ValueError(
                f"{quoted(DEFAULT_RECIPE)} is the name of 'recipe'; rename that in 'recipes'"
            )
        tasks = [(f"metrics.{task}", (task,)) for task in self.metrics]
        tasks += [(f"probes.{n}", p.tasks) for n, p in self.probes.items()]
        tasks += [(f"pretrainings.{n}", (p.task,)) for n, p in self.pretrainings.items()]
        tasks += [
            (f"methods.{n}", m.tasks or ())
            for n, m in self.methods.items()
            if isinstance(m, EmbedMethod | HeadMethod | LinearMethod)
        ]
        for where, names in tasks:
            if unknown := [task for task in names if task not in self.tasks]:
                raise ValueError(
                    f"{where} names the task {quoted(unknown[0])}; there are {', '.join(self.tasks)}"
                )
        for name, probe in self.probes.items():
            for task in probe.tasks:
                if (kind := task_kind(self.tasks[task])) not in PROBED[probe.kind]:
                    raise ValueError(
                        f"probes.{name} is of kind {probe.kind} and names the task {quoted(task)} of kind "
                        f"{kind}; it is made for {', '.join(PROBED[probe.kind])}"
                    )
        for task, metric in self.metrics.items():
            if metric not in METRICS[kind := task_kind(self.tasks[task])]:
                raise ValueError(
                    f"metrics.{task} is {quoted(metric)}, which a task of kind {kind} does not have; there "
                    f"are {', '.join(METRICS[kind])}"
                )
        for name, method in self.layers_methods.items():
            if method.encoders is not None and method.encoders not in self.pretrainings:
                raise ValueError(
                    f"methods.{name} starts from the pretraining {quoted(method.encoders)}; there are "
                    f"{', '.join(self.pretrainings) or 'none'}"
                )
        check_evaluations(self)
        evaluated = {m for e in self.evaluations.values() for m in evaluated_methods(self, e)}
        for name, method in self.methods.items():
            if not self.tasks_of(method) and not (name in evaluated and name in self.embed_methods):
                kind = " or ".join(_task_kinds(method))
                found = ", ".join(f"{t} ({task_kind(c)})" for t, c in self.tasks.items())
                raise ValueError(
                    f"methods.{name} is scored on tasks of kind {kind}, and there is none; the tasks are "
                    f"{found}"
                )
        return self

    @property
    def embed_methods(self) -> dict[str, EmbedMethod]:
        """Methods without training."""
        return {n: m for n, m in self.methods.items() if isinstance(m, EmbedMethod)}

    @property
    def linear_methods(self) -> dict[str, LinearMethod]:
        """Linear classifiers on frozen vectors."""
        return {n: m for n, m in self.methods.items() if isinstance(m, LinearMethod)}

    @property
    def layers_methods(self) -> dict[str, LayersMethod]:
        """Pair heads on the latents of every layer."""
        return {n: m for n, m in self.methods.items() if isinstance(m, LayersMethod)}

    @property
    def all_recipes(self) -> dict[str, Recipe]:
        """Every recipe by name, the experiment's own first."""
        return {DEFAULT_RECIPE: self.recipe, **self.recipes}

    def fit_config(self, method: HeadMethod, task: str, seed: int) -> FitConfig:
        """The complete config of one fit."""
        kind = task_kind(self.tasks[task])
        return method.fit_config(kind, self.metrics.get(task, DEFAULT_METRIC[kind]), seed)

    def linear_config(self, method: LinearMethod, task: str, seed: int) -> LinearConfig:
        """The complete config of a linear method on a task."""
        own = DEFAULT_METRIC[task_kind(self.tasks[task])]
        return method.linear_config(self.metrics.get(task, own), seed)

    def seeds_of(self, method: MethodConfig) -> tuple[int, ...]:
        """Every seed for what is trained or permuted, one for what has nothing random."""
        is_random = isinstance(method, SEEDED) or (
            isinstance(method, LinearMethod) and method.is_random
        )
        return self.seeds if is_random else self.seeds[:1]

    def loss_of(self, method: HeadMethod | LayersMethod, task: str) -> str:
        """What training makes small."""
        if isinstance(method, LayersMethod):
            return method.loss
        return self.fit_config(method, task, 0).loss.kind

    def control_config(self, method: LengthMethod | BagOfWordsMethod, task: str) -> ControlConfig:
        """What sees no backbone, compared by the task's own metric unless it names one."""
        config = method.config
        if "metric" in method.model_fields_set or task not in self.metrics:
            return config
        return type(config).model_validate(config.model_dump() | {"metric": self.metrics[task]})

    def tasks_of(self, method: MethodConfig) -> tuple[str, ...]:
        """The tasks that a method is scored on."""
        kinds = _task_kinds(method)
        fitting = tuple(task for task, config in self.tasks.items() if task_kind(config) in kinds)
        can_choose = isinstance(method, EmbedMethod | HeadMethod | LinearMethod)
        if not can_choose or method.tasks is None:
            return fitting
        return tuple(task for task in fitting if task in method.tasks)


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read and validate an experiment file, see `read_yaml` for the form of its values.

    `${NAME}` in a string is replaced by the environment variable; relative paths of corpora count from
    the working folder. Top-level keys that begin with `x-` are ignored (a place for YAML anchors).

    Args:
        path: YAML file.
        overrides: `path.to.field=value` each, the value in YAML.

    Raises:
        InputError: unreadable, unknown or wrong fields: each with its path and the value given.
    """
    document = read_yaml(_text(path), str(path))
    if not isinstance(document, dict):
        raise InputError(
            f"{path} holds {type(document).__name__}, expected fields such as name, tasks"
        )
    for override in overrides:
        _override(document, override)
    document = {k: v for k, v in document.items() if not str(k).startswith("x-")}
    try:
        return Experiment.model_validate(_expanded(document, "$"))
    except ValidationError as error:
        raise InputError(
            f"{path} has {error.error_count()} wrong field(s):\n  {wrong_fields(error)}"
        ) from error


def _text(path: Path) -> str:
    checked_path(path, "the experiment file")
    if not path.exists():
        raise InputError(f"there is no experiment file {path}")
    if not path.is_file():
        # A device or a pipe may have no end, and the file is read twice.
        raise InputError(f"{path} is not a readable YAML file: it is no regular file")
    if (n_bytes := path.stat().st_size) > MAX_FILE_BYTES:
        raise InputError(
            f"{path} has {n_bytes:,} bytes; an experiment file has at most {MAX_FILE_BYTES:,}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error


def _override(document: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise InputError(f"--set {quoted(override)} is not of the form path.to.field=value")
    at: Any = document
    parts, seen = dotted.split("."), list[str]()
    if len(parts) > MAX_NESTING:
        raise InputError(f"--set {quoted(override)} names a field {len(parts):,} names deep")
    while len(parts) > 1:
        # Names of tasks and methods may hold dots: the longest name that exists is meant.
        lengths = range(len(parts) - 1, 0, -1)
        n = next((n for n in lengths if isinstance(at, dict) and ".".join(parts[:n]) in at), 1)
        name, parts = ".".join(parts[:n]), parts[n:]
        seen.append(name)
        at = at.setdefault(name, {}) if isinstance(at, dict) else at
        if not isinstance(at, dict):
            where = ".".join(seen)
            raise InputError(
                f"--set {quoted(override)}: {where} is {quoted(at)}, which has no field {quoted(parts[0])}"
            )
    at[parts[0]] = read_yaml(text, f"the value of --set {quoted(override)}")


def _expanded(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {k: _expanded(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_expanded(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise InputError(f"{where} needs the environment variable {name}, which is not set")
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", lookup, value)
