"""An experiment: a complete, runnable description, with everything that follows from its fields."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from permafrost.flows.adapted import (
    AdaptedBackbone,
    Tunings,
    check_adapted,
    check_usual_names,
)
from permafrost.flows.claims import check_claims
from permafrost.flows.context import RunRuntime
from permafrost.flows.evaluations import Evaluation, EvaluationCell, Known, Named, check_evaluations
from permafrost.flows.methods import MethodConfig
from permafrost.flows.methods.evaluated import EvaluatedMethod
from permafrost.flows.methods.probes import ProbeConfig
from permafrost.flows.pretraining import Pretraining
from permafrost.flows.read_methods import check_read_methods
from permafrost.flows.recipes import DEFAULT_RECIPE, RecipeField
from permafrost.stages.bounds import MAX_SEED
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.extraction.capture import Capture
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.fit.metrics import METRICS, Metric
from permafrost.stages.kinds import use_plugins
from permafrost.stages.mteb_evaluation.instructions import NoInstructions
from permafrost.stages.report.config import ReportConfig
from permafrost.storage.features.identity import FloatName
from permafrost.storage.features.layout import Codec
from permafrost.storage.quoting import LIMIT, quoted

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True)
class GridCell:
    """One method on one task with one seed."""

    method: str
    task: str
    seed: int
    task_config: CorpusConfig
    named_metric: Metric | None
    """The metric that the experiment names for this task, if any."""
    graphs_of: tuple[str, ...]
    """Words of the test cases whose graphs the report draws, if the experiment names any."""
    weights_of: str | None
    """The task whose texts the report shows with the token weights of heads, if any."""


def loaded_plugins(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Load plug-in files, in place of those loaded before; here, as this module imports every category.

    Raises:
        InputError: see `use_plugins`.
    """
    use_plugins(paths)
    return paths


def _plain_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            "a name has lower-case letters, digits and hyphens, and begins with a letter or digit"
        )
    return name


def _each_once(seeds: tuple[int, ...]) -> tuple[int, ...]:
    twice = [seed for seed, n in Counter(seeds).items() if n > 1]
    if twice:
        raise ValueError(f"seed {twice[0]} is given more than once; give each once")
    return seeds


class Experiment(BaseModel):
    """What to compute from which texts, and how to report it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plugins: Annotated[tuple[str, ...], AfterValidator(loaded_plugins)] = Field(
        default=(), max_length=LIMIT, validate_default=True
    )
    """Python files that add kinds. This field comes first, as later ones may use these kinds."""
    name: Annotated[str, AfterValidator(_plain_name)] = Field(max_length=LIMIT)
    """Of the experiment: lower-case letters, digits and hyphens. `gc` keeps what the latest run of each name
    used."""
    backbone: BackboneConfig
    """The frozen transformer, and how it is run."""
    recipe: RecipeField = PlainRecipe()
    """How a text becomes input, where nothing else is named."""
    recipes: dict[str, RecipeField] = {}
    """More recipes by name; methods and probes name the one they use."""
    capture: Capture | None = None
    """What heads may read under `recipe`. What embed methods and probes read is added automatically."""
    store_dtype: FloatName = "float16"
    """Precision in which features are stored. float16 refuses a number outside its range."""
    codec: Codec = "none"
    """Compression of new feature stores. `none` is the fastest, as activations hardly compress."""
    tasks: dict[str, CorpusConfig] = {}
    """Corpora by name: what methods are trained and scored on."""
    metrics: dict[str, Metric] = {}
    """The metric that heads and linear methods use on a task, if not the default (accuracy, or the mean of
    both correlations)."""
    test_sets: dict[str, str] = {}
    """Tasks that are further test sets of another task, as `MNLI-mm: MNLI-m`: heads are trained on the latter
    and scored on both. Both have the same train and dev; other methods fit on each, to the same end."""
    methods: dict[str, MethodConfig] = Field(min_length=1)
    """What is compared, by the name that reports give it."""
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], AfterValidator(_each_once)
    ] = Field(default=(0, 1, 2), min_length=1, max_length=1_000)
    """Each method that is trained is trained once with each of these."""
    pretrainings: dict[str, Pretraining] = {}
    """Layer autoencoders by name, for methods of kind `layers`."""
    probes: dict[str, ProbeConfig] = {}
    """Measurements by layer, each a figure of the report."""
    adapted: dict[str, AdaptedBackbone] = {}
    """Backbones that methods of this experiment tune, for other methods to read by these names."""
    evaluations: dict[str, Evaluation] = {}
    """Methods on tasks of mteb, by name."""
    report: ReportConfig
    """Its title is the name if none is given; all of it may be left out."""
    runtime: RunRuntime = RunRuntime()
    """How it runs; part of no key."""

    @model_validator(mode="before")
    @classmethod
    def _report_has_a_title(cls, fields: Any) -> Any:
        report = fields.get("report", {}) if isinstance(fields, Mapping) else None
        if not isinstance(report, Mapping) or "title" in report:
            return fields
        return {**fields, "report": {"title": str(fields.get("name") or "Report"), **report}}

    @model_validator(mode="after")
    def _names_exist(self) -> "Experiment":
        for field in (
            "recipes",
            "tasks",
            "methods",
            "pretrainings",
            "probes",
            "adapted",
            "evaluations",
        ):
            for name in getattr(self, field):
                if not 0 < len(name) <= LIMIT or "\0" in name:
                    raise ValueError(
                        f"{field} has the name {quoted(name)}; names have 1 to {LIMIT} characters, none of "
                        "them NUL"
                    )
        if not self.tasks and not self.evaluations:
            raise ValueError("there are neither tasks nor evaluations; give at least one")
        named = [
            (f"methods.{n}{field}", recipe)
            for n, m in self.methods.items()
            for field, recipe in m.recipes().items()
        ]
        named += [(f"pretrainings.{n}", p.latents.recipe) for n, p in self.pretrainings.items()]
        named += [(f"probes.{n}", r) for n, p in self.probes.items() for r in p.recipes()]
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
        tasks += [(f"test_sets.{one}", (one, other)) for one, other in self.test_sets.items()]
        tasks += [(f"probes.{n}", p.tasks) for n, p in self.probes.items()]
        tasks += [(f"pretrainings.{n}", p.tasks) for n, p in self.pretrainings.items()]
        tasks += [(f"methods.{n}", m.named_tasks or ()) for n, m in self.methods.items()]
        if self.report.weights_of is not None:
            tasks.append(("report.weights_of", (self.report.weights_of,)))
        for where, names in tasks:
            if unknown := [task for task in names if task not in self.tasks]:
                raise ValueError(
                    f"{where} names the task {quoted(unknown[0])}; there are {', '.join(self.tasks)}"
                )
        for name, probe in self.probes.items():
            for task in probe.tasks:
                if (kind := self.tasks[task].task_kind) not in probe.task_kinds:
                    raise ValueError(
                        f"probes.{name} is of kind {probe.kind} and names the task {quoted(task)} of kind "
                        f"{kind}; it is made for {', '.join(probe.task_kinds)}"
                    )
        for task, metric in self.metrics.items():
            if metric not in METRICS[kind := self.tasks[task].task_kind]:
                raise ValueError(
                    f"metrics.{task} is {quoted(metric)}, which a task of kind {kind} does not have; there "
                    f"are {', '.join(METRICS[kind])}"
                )
        for name, method in self.methods.items():
            encoders = method.pretraining()
            if encoders is not None and encoders not in self.pretrainings:
                raise ValueError(
                    f"methods.{name} starts from the pretraining {quoted(encoders)}; there are "
                    f"{', '.join(self.pretrainings) or 'none'}"
                )
        for task, other in self.test_sets.items():
            if other in self.test_sets:
                raise ValueError(
                    f"test_sets.{task} is {quoted(other)}, which is itself a further test set; name the task "
                    "that is trained on"
                )
            for name in self.methods:
                if task in self.tasks_of(name) and other not in self.tasks_of(name):
                    raise ValueError(
                        f"methods.{name} is scored on {quoted(task)}, a further test set of {quoted(other)}, "
                        "and not on that; name both in its 'tasks', or neither"
                    )
            if self.metrics.get(task) != self.metrics.get(other):
                raise ValueError(
                    f"metrics has {self.metrics.get(task)} for {quoted(task)} and "
                    f"{self.metrics.get(other)} for {quoted(other)}, one fit of which is scored on "
                    "both; give both the same"
                )
        check_read_methods(self.methods, self.tasks_of)
        check_claims(self.report.claims, self.methods, self.probes)
        for number, held in enumerate(self.report.residuals):
            if held.method not in self.methods:
                raise ValueError(
                    f"report.residuals.{number} names the method {quoted(held.method)}; there are "
                    f"{', '.join(self.methods)}"
                )
            scored = self.tasks_of(held.method)
            if unknown := [task for task in held.tasks if task not in scored]:
                raise ValueError(
                    f"report.residuals.{number} names the task {quoted(unknown[0])}; "
                    f"{quoted(held.method)} is scored on {', '.join(scored)}"
                )
        check_adapted(
            self.adapted, Tunings(self.methods, self.tasks_of, self.seeds_of, self.all_recipes)
        )
        scored_on = self._evaluable.tasks
        check_evaluations(
            self.evaluations, Named(self.methods, scored_on, self.all_recipes, tuple(self.tasks))
        )
        check_usual_names(self.adapted, filter(None, (c.tuned for c in self.evaluation_cells)))
        evaluated = {
            m for n, e in self.evaluations.items() for m in e.method_names(self._evaluable, n)
        }
        for name, method in self.methods.items():
            # A training-free method need not be scored on a task to be evaluated.
            if not scored_on[name] and not (name in evaluated and not method.is_random):
                if method.named_tasks == ():
                    raise ValueError(
                        f"methods.{name}.tasks is empty, so that it is scored on no task; name tasks, or "
                        "leave the field out for all of them"
                    )
                kinds = {t: self.tasks[t].task_kind for t in method.named_tasks or self.tasks}
                found = ", ".join(f"{t} ({kind})" for t, kind in kinds.items())
                there = (
                    f"there is none; the tasks are {found}"
                    if method.named_tasks is None
                    else f"methods.{name}.tasks names none but {found}"
                )
                advice = ""
                if "unlabelled" in {*kinds.values()} - {*method.task_kinds}:
                    advice = "; a head takes pairs without labels with loss: {kind: contrastive}"
                raise ValueError(
                    f"methods.{name} is scored on tasks of kind {' or '.join(method.task_kinds)}, and "
                    f"{there}{advice}"
                )
        return self

    @property
    def all_recipes(self) -> dict[str, Recipe]:
        """Every recipe by name, the experiment's own first."""
        return {DEFAULT_RECIPE: self.recipe, **self.recipes}

    def tasks_of(self, method: str) -> tuple[str, ...]:
        """The tasks that a method is scored on."""
        named = self.methods[method].named_tasks
        fitting = (task for task, config in self.tasks.items() if self.methods[method].fits(config))
        return tuple(task for task in fitting if named is None or task in named)

    def fitted_on(self, method: str, task: str) -> str:
        """The task on which a method is fitted that is scored on a task."""
        shares = self.methods[method].fits_other_test_sets
        return self.test_sets.get(task, task) if shares else task

    def seeds_of(self, method: str) -> tuple[int, ...]:
        """Every seed for a method that is trained or permuted, one for a deterministic method."""
        return self.seeds if self.methods[method].is_random else self.seeds[:1]

    def cell(self, method: str, task: str, seed: int) -> GridCell:
        """A method on a task."""
        return GridCell(
            *(method, task, seed, self.tasks[task], self.metrics.get(task)),
            self.report.graphs_of.get(task, ()),
            self.report.weights_of,
        )

    @cached_property
    def cells(self) -> tuple[GridCell, ...]:
        """The grid, task by task."""
        return tuple(
            self.cell(name, task, seed)
            for task in self.tasks
            for name in self.methods
            if task in self.tasks_of(name)
            for seed in self.seeds_of(name)
        )

    @property
    def _evaluable(self) -> Known:
        return Known(self.methods, {name: self.tasks_of(name) for name in self.methods})

    @cached_property
    def evaluation_cells(self) -> tuple[EvaluationCell, ...]:
        """Every method on every evaluation task; a method without randomness has one seed."""
        cells: list[EvaluationCell] = []
        for place, evaluation in self.evaluations.items():
            reading = evaluation.instructed_methods(self._evaluable, place)
            for task, config in evaluation.all_tasks.items():
                for name in evaluation.method_names(self._evaluable, place):
                    method = self.methods[name].evaluated()
                    assert method is not None, "the experiment was checked for it"
                    instructions = evaluation.instructions if name in reading else NoInstructions()
                    cells += [
                        EvaluationCell(
                            name, method, task, seed, config, evaluation.fitted_on, instructions
                        )
                        for seed in self.seeds_of(name)
                    ]
        return tuple(cells)

    @cached_property
    def choice_cells(self) -> tuple[EvaluationCell, ...]:
        """Every method whose layers an evaluation chooses, on each of its tasks."""
        cells: list[EvaluationCell] = []
        for name, evaluation, method in self._chosen():
            reads = evaluation.reads_instructions(name)
            instructions = evaluation.instructions if reads else NoInstructions()
            cells += [
                EvaluationCell(name, method, task, self.seeds[0], config, None, instructions)
                for task, config in evaluation.all_tasks.items()
            ]
        return tuple(cells)

    def _chosen(self) -> Iterator[tuple[str, Evaluation, EvaluatedMethod]]:
        for name, method in self.methods.items():
            evaluated = method.evaluated()
            if evaluated is not None and (by := evaluated.choosing()) is not None:
                yield name, self.evaluations[by.evaluation], evaluated

    @property
    def vector_cells(self) -> tuple[EvaluationCell, ...]:
        """All methods on evaluation tasks for whose texts they need vectors, to be scored or to choose."""
        return (*self.choice_cells, *self.evaluation_cells)

    @cached_property
    def all_adapted(self) -> dict[str, AdaptedBackbone]:
        """Every adapted backbone by name: those that are named, and those that evaluations read."""
        evaluated = {self.backbone_of(c): c.tuned for c in self.evaluation_cells}
        return self.adapted | {
            name: one for name, one in evaluated.items() if name is not None and one is not None
        }

    def backbone_of(self, cell: EvaluationCell) -> str | None:
        """Name of the adapted backbone that a method is evaluated on; None for the experiment's own."""
        if (own := cell.tuned) is None:
            return cell.method.adapted_backbone
        named = (name for name, one in self.adapted.items() if one == own)
        return next(named, own.usual_name)

    @cached_property
    def fitted_elsewhere(self) -> tuple[tuple[str, str], ...]:
        """Methods that evaluations have fitted on a task that they are not scored on, each with that task."""
        pairs = {
            (c.name, c.fitted_on): None
            for c in self.evaluation_cells
            if c.needs_fit and c.fitted_on is not None and c.fitted_on not in self.tasks_of(c.name)
        }
        return tuple(pairs)
