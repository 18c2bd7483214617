"""The evaluations of an experiment: methods on tasks of mteb, or on local tasks of the same kinds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from flows.recipes import DEFAULT_RECIPE
from stages.embed.config import AUTO
from stages.freeze import UnifiedHead, UnifiedProjectionHead
from stages.mteb_evaluation import HubTask, LocalTask, MtebTask, Role, SuiteName, suite
from stages.mteb_evaluation.tasks import SEARCH_ROLES
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


def evaluated_methods(experiment: "Experiment", evaluation: Evaluation) -> tuple[str, ...]:
    """Names of the methods of an evaluation."""
    return tuple(experiment.embed_methods) if evaluation.methods is None else evaluation.methods


def evaluation_cells(experiment: "Experiment") -> list[EvaluationCell]:
    """Every method on every task; a method without randomness has one seed."""
    return [
        EvaluationCell(name, task, seed, config, evaluation.fitted_on)
        for evaluation in experiment.evaluations.values()
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


def recipe_of(method: "EmbedMethod | HeadMethod | LayersMethod", role: Role) -> str:
    """The recipe under which a method reads texts of a role."""
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
    return ("text", *SEARCH_ROLES) if isinstance(config, HubTask) else config.roles


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
