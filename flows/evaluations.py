"""The evaluations of an experiment: methods on mteb's tasks, or on local tasks of the same kinds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.flows.adapted import AdaptedBackbone
from permafrost.flows.methods.evaluated import EvaluatedMethod
from permafrost.flows.methods.method import Method
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.mteb_evaluation.instructions import (
    TEXT,
    Instructions,
    NoInstructions,
    task_instructions,
)
from permafrost.stages.mteb_evaluation.suites import SuiteName, suite
from permafrost.stages.mteb_evaluation.task import MtebTask, Role
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class Evaluation(BaseModel):
    """Methods on tasks; every combination is one result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: dict[str, MtebTask] = {}
    """Tasks by their name in tables. A task with the same name as one of a suite replaces it."""
    suites: tuple[SuiteName, ...] = ()
    """Named sets of tasks from the hub."""
    methods: tuple[str, ...] | None = None
    """Methods of kind `embed` or `head`, or of kind `layers` with a unified embedding; if not given, all of
    kind `embed`, and with `fitted_on` those that are trained on that task. None (`[]`) in an evaluation that
    is there to choose layers by, see `layers_by`."""
    fitted_on: str | None = None
    """The task of the experiment on which heads are trained, `auto` layers chosen and whitening fitted (on
    the texts of train; a task of any kind)."""
    instructions: Instructions = NoInstructions()
    """Instructions around the texts of tasks. Methods that are trained or whitened cannot use them, as they
    were fitted on texts without instructions."""

    @property
    def all_tasks(self) -> dict[str, MtebTask]:
        """The tasks of the suites, then the others."""
        tasks: dict[str, MtebTask] = {}
        for name in self.suites:
            tasks.update(suite(name))
        return tasks | self.tasks

    def method_names(self, known: "Known", name: str) -> tuple[str, ...]:
        """Its methods: those given, or all training-free ones whose layers it does not choose and, with
        `fitted_on`, those that are trained on that task.

        Args:
            known: the methods of the experiment.
            name: of this evaluation.
        """
        if self.methods is not None:
            return self.methods
        return tuple(
            n
            for n, m in known.methods.items()
            if _scored_by(m, name) and (not m.is_random or self.fitted_on in known.tasks[n])
        )

    def instructed_methods(self, known: "Known", name: str) -> tuple[str, ...]:
        """Those of its methods that use the instructions of tasks; see `method_names`."""
        named = self.instructions.methods
        return self.method_names(known, name) if named is None else named

    def reads_instructions(self, chosen: str) -> bool:
        """Whether a method whose layers are chosen by this evaluation reads the instructions of tasks."""
        named = self.instructions.methods
        return named is None or chosen in named


@dataclass(frozen=True)
class Known:
    """The methods that an evaluation may score."""

    methods: Mapping[str, Method]
    tasks: Mapping[str, tuple[str, ...]]
    """The tasks that each of them is scored on."""


@dataclass(frozen=True)
class EvaluationCell:
    """One method on one evaluation task."""

    name: str
    method: EvaluatedMethod
    task: str
    seed: int
    config: MtebTask
    fitted_on: str | None
    instructions: Instructions

    @property
    def instructed(self) -> dict[Role, str]:
        """The instruction around texts, by role; roles without one are left out.

        Raises:
            InputError: there is no instruction for the task.
        """
        return task_instructions(self.instructions, self.task, self.config)

    @property
    def recipes(self) -> dict[Role, str]:
        """The recipe for the texts of each role: one of the experiment, or the same with the task's
        instruction, named after both."""
        recipes_of: dict[Role, str] = {}
        for role in self.config.roles:
            own, instruction = self.method.recipe_for(role), self.instructed.get(role)
            recipes_of[role] = own if instruction is None else f"{own} · {instruction}"
        return recipes_of

    @property
    def tuned(self) -> AdaptedBackbone | None:
        """The backbone that the method has tuned itself; None for a method that leaves it as it is."""
        train = self.method.tuning()
        if train is None or not train.changes_states:
            return None
        assert self.fitted_on is not None, "the experiment was checked for it"
        return AdaptedBackbone(method=self.name, task=self.fitted_on, seed=self.seed)

    @property
    def needs_fit(self) -> bool:
        """Whether something has to be fitted first."""
        return self.method.fitted_because() is not None


def _scored_by(method: Method, evaluation: str) -> bool:
    evaluated = method.evaluated()
    if evaluated is None or evaluated.without_vector() is not None:
        return False
    by = evaluated.choosing()
    return by is None or by.evaluation != evaluation


def texts_name(task: str, role: Role) -> str:
    """Name of the corpus of an evaluation task's texts in a role."""
    return f"{task} · {role} of evaluation"


def evaluation_texts(evaluations: Mapping[str, Evaluation]) -> dict[str, tuple[MtebTask, Role]]:
    """The task and role of each corpus of evaluation texts, by its name."""
    return {
        texts_name(task, role): (config, role)
        for evaluation in evaluations.values()
        for task, config in evaluation.all_tasks.items()
        for role in config.roles
    }


def instructed_recipes(
    cells: Sequence[EvaluationCell], recipes: Mapping[str, Recipe]
) -> dict[str, Recipe]:
    """The recipes with instructions that evaluations use, by name: one per recipe and instruction, however
    many tasks share it.

    Raises:
        InputError: there is no instruction for a task, or a recipe of the experiment has the name of one of
            these.
    """
    instructed: dict[str, Recipe] = {}
    for cell in cells:
        for role, name in cell.recipes.items():
            if (instruction := cell.instructed.get(role)) is None:
                continue
            if name in recipes:
                raise InputError(
                    f"recipes has the name {quoted(name)}, which a recipe with the instruction of the task "
                    f"{quoted(cell.task)} gets; rename it"
                )
            base = recipes[cell.method.recipe_for(role)]
            # Validated, as an instruction comes from outside.
            try:
                instructed[name] = type(base).model_validate(
                    base.model_dump() | {"instruction": instruction}
                )
            except ValidationError as error:
                raise InputError(
                    f"the task {quoted(cell.task)} has the instruction {quoted(instruction)} for {role}, "
                    f"which the recipe {quoted(cell.method.recipe_for(role))} cannot take: "
                    f"{error.errors()[0]['msg']}"
                ) from error
    return instructed


@dataclass(frozen=True)
class Named(Known):
    """The names that evaluations may refer to."""

    recipes: Mapping[str, Recipe]
    task_names: tuple[str, ...]


def check_evaluations(evaluations: Mapping[str, Evaluation], named: Named) -> None:
    """Check that names exist, and that methods can be used on texts outside a corpus.

    Raises:
        ValueError: the first problem.
    """
    seen, choosing = dict[str, str](), _choosing(evaluations, named)
    for name, evaluation in evaluations.items():
        where, fitted_on = f"evaluations.{name}", evaluation.fitted_on
        if not evaluation.all_tasks:
            raise ValueError(f"{where} has neither tasks nor suites; name at least one")
        if fitted_on is not None and fitted_on not in named.task_names:
            raise ValueError(
                f"{where}.fitted_on is {quoted(fitted_on)}; there are "
                f"{', '.join(named.task_names) or 'no tasks'}"
            )
        methods = evaluation.method_names(named, name)
        for method in methods:
            _check_method(where, method, fitted_on, named)
        if not methods and name not in choosing:
            raise ValueError(
                f"{where} names no methods, and there is none of kind 'embed'; name heads in 'methods'"
            )
        for method in choosing.get(name, ()):
            if method in methods:
                raise ValueError(
                    f"{where} scores {quoted(method)}, whose layers are chosen by it; name the methods that "
                    f"it scores, without this one: evaluations.{name}.methods=[...]"
                )
        _check_instructions(name, evaluation, named, choosing.get(name, ()))
        for task, config in evaluation.all_tasks.items():
            if task in named.task_names:
                raise ValueError(
                    f"{where}.tasks.{task} has the name of a task of the experiment; rename one of them"
                )
            for texts in (texts_name(task, role) for role in config.roles):
                if texts in named.task_names:
                    raise ValueError(
                        f"tasks has the name {quoted(texts)}, which the texts of {where}.tasks.{task} have; "
                        "rename it"
                    )
            if seen.setdefault(task, name) != name:
                raise ValueError(
                    f"{where} and evaluations.{seen[task]} both have a task {quoted(task)}; rename one of "
                    f"them, or put their methods into one evaluation"
                )


def _choosing(evaluations: Mapping[str, Evaluation], named: Named) -> dict[str, list[str]]:
    """Methods by the evaluation that chooses their layers. Raises: ValueError: there is no such."""
    found: dict[str, list[str]] = {}
    for name, method in named.methods.items():
        evaluated = method.evaluated()
        if evaluated is None or (by := evaluated.choosing()) is None:
            continue
        if by.evaluation not in evaluations:
            raise ValueError(
                f"methods.{name}.layers_by.evaluation is {quoted(by.evaluation)}; there are "
                f"{', '.join(evaluations) or 'no evaluations'}"
            )
        found.setdefault(by.evaluation, []).append(name)
    return found


def _check_instructions(
    name: str, evaluation: Evaluation, named: Named, choosing: Sequence[str]
) -> None:
    where, instructions = f"evaluations.{name}", evaluation.instructions
    scored, tasks = evaluation.method_names(named, name), evaluation.all_tasks
    evaluated = (*scored, *choosing)
    for field, names, known in (
        ("methods", instructions.methods or (), evaluated),
        ("tasks", instructions.tasks, tasks),
    ):
        if unknown := [name for name in names if name not in known]:
            raise ValueError(
                f"{where}.instructions.{field} names {quoted(unknown[0])}; the evaluation has "
                f"{', '.join(known)}"
            )
    reading = evaluation.instructed_methods(named, name)
    for read in dict.fromkeys((*reading, *filter(evaluation.reads_instructions, choosing))):
        method = named.methods[read].evaluated()
        assert method is not None, "checked before"
        if method.learns_from_texts:
            why = "is trained" if method.is_random else "fits its whitening"
            raise ValueError(
                f"{where} has instructions for {quoted(read)}, which {why} on texts without them; "
                f"name the methods that read them in 'instructions.methods'"
            )
        for recipe in method.recipes().values():
            own = named.recipes[recipe].instruction
            if own != TEXT:
                raise ValueError(
                    f"{where} has instructions for {quoted(read)}, whose recipe {quoted(recipe)} has "
                    f"one of its own, {quoted(own)}; remove one of them"
                )


def _check_method(where: str, name: str, fitted_on: str | None, named: Named) -> None:
    method = named.methods.get(name)
    if method is None:
        raise ValueError(
            f"{where}.methods names {quoted(name)}; there are {', '.join(named.methods)}"
        )
    evaluated = method.evaluated()
    if evaluated is None or evaluated.without_vector() is not None:
        raise ValueError(f"{where}.methods names {quoted(name)}, {method.without_vector()}")
    sizes = {r: len(named.recipes[r].members()) for r in evaluated.recipes().values()}
    if evaluated.joins_prompts and len(set(sizes.values())) > 1:
        listed = ", ".join(f"{quoted(recipe)} has {n}" for recipe, n in sizes.items())
        raise ValueError(
            f"methods.{name} joins the vectors of its prompts, of which its recipes have different numbers "
            f"({listed}): queries and documents would have vectors of different width; give them equally "
            "many, or 'combine: average'"
        )
    why = evaluated.fitted_because()
    if why is None:
        return
    if fitted_on is None:
        raise ValueError(
            f"{where} evaluates {quoted(name)}, which {why} on a task; say on which with 'fitted_on'"
        )
    if not evaluated.fitted_on_any_task and fitted_on not in named.tasks[name]:
        raise ValueError(
            f"{where}.fitted_on is {quoted(fitted_on)}, but {quoted(name)}, which {why} on a task, goes with "
            f"{', '.join(named.tasks[name]) or 'none'}"
        )
