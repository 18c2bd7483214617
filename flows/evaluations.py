"""The evaluations of an experiment: methods on tasks of mteb, or on local tasks of the same kinds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from flows.recipes import DEFAULT_RECIPE
from stages.embed.config import AUTO
from stages.extraction.recipes import Recipe
from stages.freeze import UnifiedHead, UnifiedProjectionHead
from stages.mteb_evaluation import (
    HubTask,
    Instructions,
    LocalTask,
    MtebTask,
    NoInstructions,
    Role,
    SuiteName,
    suite,
    task_instructions,
)
from stages.mteb_evaluation.instructions import TEXT
from stages.mteb_evaluation.tasks import ROLES
from storage.errors import InputError
from storage.quoting import quoted

if TYPE_CHECKING:
    from flows.experiment import EmbedMethod, Experiment, HeadMethod, LayersMethod


class Evaluation(BaseModel):
    """Methods on tasks; every pair of them is one result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: dict[str, MtebTask] = {}
    """By the name that they get in tables. A task with the name of one of a suite stands instead of it."""
    suites: tuple[SuiteName, ...] = ()
    """Named sets of tasks from the hub."""
    methods: tuple[str, ...] | None = None
    """Methods of kind `embed` or `head`, and those of kind `layers` with a unified embedding; all of kind
    `embed` if not given."""
    fitted_on: str | None = None
    """The task of the experiment on which heads were trained, layers named `auto` chosen, and whitening
    fitted, on the texts of train; for whitening a task of any kind."""
    instructions: Instructions = NoInstructions()
    """Words of a task around its texts. Methods that are trained or whitened learnt from texts without, and
    cannot read them."""

    @property
    def all_tasks(self) -> dict[str, MtebTask]:
        """Those of the suites, then the others."""
        found: dict[str, MtebTask] = {}
        for name in self.suites:
            found.update(suite(name))
        return found | self.tasks


@dataclass(frozen=True)
class EvaluationCell:
    """One method on one evaluation task."""

    method: str
    task: str
    seed: int
    config: MtebTask
    fitted_on: str | None
    instructions: Instructions

    @property
    def instructed(self) -> dict[Role, str]:
        """What is said around texts, by role; roles without are left out.

        Raises:
            InputError: there are no words for the task.
        """
        return task_instructions(self.instructions, self.task, self.config)


def evaluated_methods(experiment: "Experiment", evaluation: Evaluation) -> tuple[str, ...]:
    """Names of the methods of an evaluation."""
    return tuple(experiment.embed_methods) if evaluation.methods is None else evaluation.methods


def instructed_methods(experiment: "Experiment", evaluation: Evaluation) -> tuple[str, ...]:
    """Those of them that read the instructions of tasks."""
    given = evaluation.instructions
    if isinstance(given, NoInstructions):
        return ()
    return evaluated_methods(experiment, evaluation) if given.methods is None else given.methods


def evaluation_cells(experiment: "Experiment") -> list[EvaluationCell]:
    """Every method on every task; a method without randomness has one seed."""
    return [
        EvaluationCell(
            name,
            task,
            seed,
            config,
            evaluation.fitted_on,
            evaluation.instructions if name in reading else NoInstructions(),
        )
        for evaluation in experiment.evaluations.values()
        for reading in [instructed_methods(experiment, evaluation)]
        for task, config in evaluation.all_tasks.items()
        for name in evaluated_methods(experiment, evaluation)
        for seed in experiment.seeds_of(experiment.methods[name])
    ]


def whitened_for_evaluations(experiment: "Experiment") -> list[tuple[str, str]]:
    """Methods whose whitening is fitted on a task that they are not scored on, each with that task."""
    pairs = {
        (name, evaluation.fitted_on): None
        for evaluation in experiment.evaluations.values()
        for name in evaluated_methods(experiment, evaluation)
        if (method := experiment.embed_methods.get(name)) is not None
        and method.whitening is not None
        and evaluation.fitted_on is not None
        and evaluation.fitted_on not in experiment.tasks_of(method)
    }
    return [(name, task) for name, task in pairs if task is not None]


def recipe_of(
    method: "EmbedMethod | HeadMethod | LayersMethod", role: Role, cell: EvaluationCell
) -> str:
    """The recipe under which a method reads texts of a role of an evaluation: one of the experiment, or that
    with the instruction of the task, named after both."""
    name = _own_recipe(method, role)
    instruction = cell.instructed.get(role)
    return name if instruction is None else f"{name} · {instruction}"


def evaluation_recipes(experiment: "Experiment") -> dict[str, Recipe]:
    """Recipes with an instruction that evaluations read, by name: one per recipe and instruction, whatever
    tasks share it.

    Raises:
        InputError: there are no words for a task, or a recipe of the experiment has the name of one of these.
    """
    found: dict[str, Recipe] = {}
    for cell in evaluation_cells(experiment):
        method = experiment.embed_methods.get(cell.method)
        if method is None:
            continue
        for role in roles_of(cell.config):
            if (instruction := cell.instructed.get(role)) is None:
                continue
            base = experiment.all_recipes[_own_recipe(method, role)]
            name = recipe_of(method, role, cell)
            if name in experiment.all_recipes:
                raise InputError(
                    f"recipes has the name {quoted(name)}, which a recipe with the instruction of the task "
                    f"{quoted(cell.task)} gets; rename it"
                )
            # Through validation: an instruction comes from outside.
            fields = base.model_dump() | {"instruction": instruction}
            found[name] = type(base).model_validate(fields)
    return found


def _own_recipe(method: "EmbedMethod | HeadMethod | LayersMethod", role: Role) -> str:
    if method.kind == "head":
        return DEFAULT_RECIPE
    if method.kind == "layers":
        return method.recipe
    return method.recipe if role == "text" else method.prompts.get(role, method.recipe)


def texts_name(task: str, role: Role) -> str:
    """What the corpus of an evaluation task's texts in a role is called."""
    return f"{task} · {role} of evaluation"


def roles_of(config: MtebTask) -> tuple[Role, ...]:
    """Roles in which a task asks for texts; of a task from the hub, all in which it may."""
    return ROLES if isinstance(config, HubTask) else config.roles


def evaluation_texts(experiment: "Experiment") -> dict[str, tuple[LocalTask, Role]]:
    """Corpora of the texts of local tasks: name to task and role."""
    return {
        texts_name(task, role): (config, role)
        for evaluation in experiment.evaluations.values()
        for task, config in evaluation.all_tasks.items()
        if not isinstance(config, HubTask)
        for role in config.roles
    }


def check_evaluations(experiment: "Experiment") -> None:
    """Check that names exist and that methods can be used on texts that belong to no corpus.

    Raises:
        ValueError: says what is wrong.
    """
    seen = dict[str, str]()
    for name, evaluation in experiment.evaluations.items():
        where = f"evaluations.{name}"
        if not evaluation.all_tasks:
            raise ValueError(f"{where} has neither tasks nor suites; name at least one")
        fitted_on = evaluation.fitted_on
        if fitted_on is not None and fitted_on not in experiment.tasks:
            raise ValueError(
                f"{where}.fitted_on is {quoted(fitted_on)}; there are "
                f"{', '.join(experiment.tasks) or 'no tasks'}"
            )
        for method in evaluated_methods(experiment, evaluation):
            _check_method(experiment, where, method, fitted_on)
        if not evaluated_methods(experiment, evaluation):
            raise ValueError(
                f"{where} names no methods, and there is none of kind 'embed'; name heads in 'methods'"
            )
        _check_instructions(experiment, where, evaluation)
        for task in evaluation.all_tasks:
            if task in experiment.tasks:
                raise ValueError(
                    f"{where}.tasks.{task} has the name of a task of the experiment; rename one of them"
                )
            if seen.setdefault(task, name) != name:
                raise ValueError(
                    f"{where} and evaluations.{seen[task]} both have a task {quoted(task)}; rename one of "
                    f"them, or put their methods into one evaluation"
                )


def _check_instructions(experiment: "Experiment", where: str, evaluation: Evaluation) -> None:
    given = evaluation.instructions
    if isinstance(given, NoInstructions):
        return
    evaluated, tasks = evaluated_methods(experiment, evaluation), evaluation.all_tasks
    for field, names, known in (
        ("methods", given.methods or (), evaluated),
        ("tasks", given.tasks, tasks),
    ):
        if unknown := [name for name in names if name not in known]:
            raise ValueError(
                f"{where}.instructions.{field} names {quoted(unknown[0])}; the evaluation has "
                f"{', '.join(known)}"
            )
    for name in instructed_methods(experiment, evaluation):
        method = experiment.embed_methods.get(name)
        if method is None or method.whitening is not None:
            why = "is trained" if method is None else "fits its whitening"
            raise ValueError(
                f"{where} has instructions for {quoted(name)}, which {why} on texts without them; "
                f"name the methods that read them in 'instructions.methods'"
            )
        for recipe in (method.recipe, *method.prompts.values()):
            own = experiment.all_recipes[recipe].instruction
            if own != TEXT:
                raise ValueError(
                    f"{where} has instructions for {quoted(name)}, whose recipe {quoted(recipe)} has "
                    f"one of its own, {quoted(own)}; remove one of them"
                )


def _check_method(experiment: "Experiment", where: str, name: str, fitted_on: str | None) -> None:
    method = experiment.methods.get(name)
    if method is None:
        raise ValueError(
            f"{where}.methods names {quoted(name)}; there are {', '.join(experiment.methods)}"
        )
    if method.kind not in ("embed", "head", "layers"):
        raise ValueError(
            f"{where}.methods names {quoted(name)}, which is of kind {quoted(method.kind)} and has no "
            f"vector for one text that mteb could use; name methods of kind embed or head"
        )
    if method.kind == "layers" and not isinstance(method.head, UnifiedHead | UnifiedProjectionHead):
        kinds = f"{quoted(UnifiedHead().kind)} and {quoted(UnifiedProjectionHead().kind)}"
        raise ValueError(
            f"{where}.methods names {quoted(name)}, whose head {quoted(method.head.kind)} scores pairs of "
            "texts and has "
            f"no vector for one text that mteb could use; among the heads on every layer only {kinds} have"
        )
    why = "is trained"
    if method.kind == "embed":
        if method.layers != AUTO and method.whitening is None:
            return
        why = "chooses its layers" if method.layers == AUTO else "fits its whitening"
    if fitted_on is None:
        raise ValueError(
            f"{where} evaluates {quoted(name)}, which {why} on a task; say on which with 'fitted_on'"
        )
    if method.kind == "embed" and method.layers != AUTO:
        return
    if fitted_on not in experiment.tasks_of(method):
        raise ValueError(
            f"{where}.fitted_on is {quoted(fitted_on)}, but {quoted(name)}, which {why} on a task, goes with "
            f"{', '.join(experiment.tasks_of(method)) or 'none'}"
        )
