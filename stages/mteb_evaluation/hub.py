"""mteb's tasks by name: looking them up, and loading their data from the hub."""

import difflib
from collections.abc import Sequence
from functools import cache
from typing import Any

import datasets
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.get_tasks import TASK_LIST, get_task
from mteb.types import PromptType

from permafrost.stages.mteb_evaluation.task import ROLES, Prompts, Role, TaskCategory
from permafrost.stages.mteb_evaluation.tasks.hub import HubTask
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

ROLE_OF_PROMPT: dict[PromptType | None, Role] = {
    None: "text",
    PromptType.query: "query",
    PromptType.document: "document",
}
"""Our roles for mteb's prompt types."""

NEAR = 5
"""Maximum number of suggestions for an unknown name."""


def _metadata(name: str) -> TaskMetadata:
    by_name = {task.metadata.name: task.metadata for task in TASK_LIST}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=NEAR, cutoff=0.5)
        raise InputError(
            f"mteb has no task {quoted(name)} among its {len(by_name)}; "
            + (f"near it are {', '.join(near)}" if near else "its documentation lists them")
        )
    metadata = by_name[name]
    if metadata.modalities != ["text"]:
        raise InputError(
            f"the task {name} is about {' and '.join(metadata.modalities)}, an embedding of texts can only "
            f"be scored on text"
        )
    return metadata


def task_by_name(name: str) -> AbsTask:
    """A whole task of mteb, without its data.

    Raises:
        InputError: mteb has no such task, or it is not about text.
    """
    return get_task(_metadata(name).name)


def find_task(config: HubTask) -> AbsTask:
    """Look up a task in mteb, without loading its data.

    Raises:
        InputError: mteb has no such task, subset or language, or it is not about text; or it is the mean of
            others, and a split is not one that mteb averages. Whether another task has a split is known
            once its data are there, see `load_data`.
    """
    metadata = _metadata(config.name)
    _require_known(config, "subsets", list(metadata.hf_subsets))
    if hasattr(metadata, "tasks"):
        _require_known(config, "splits", list(metadata.eval_splits))
    try:
        task = get_task(
            config.name,
            languages=list(config.languages) or None,
            eval_splits=list(config.splits) or None,
            hf_subsets=list(config.subsets) or None,
            exclusive_language_filter=bool(config.languages),
        )
    except ValueError as error:
        raise InputError(
            f"the task {config.name} is not available in the languages {', '.join(config.languages)}: {error}"
        ) from error
    if not task.hf_subsets:
        raise InputError(
            f"the task {config.name} has no subset that is in {', '.join(config.languages)} alone; its "
            f"subsets are {', '.join(metadata.hf_subsets)}"
        )
    if config.revision is not None:
        if parts := getattr(task.metadata, "tasks", None):
            raise InputError(
                f"the task {config.name} is the mean of {len(parts)} others, each with data of its own, and "
                f"the revision {quoted(config.revision)} cannot be that of all; leave 'revision' out, or "
                f"name the others as tasks"
            )
        pinned = {**task.metadata.dataset, "revision": config.revision}
        task.metadata = task.metadata.model_copy(update={"dataset": pinned})
    return task


def has_task(name: str) -> bool:
    """Whether mteb lists a task of this name."""
    return any(task.metadata.name == name for task in TASK_LIST)


def parts_of(task: AbsTask) -> list[AbsTask]:
    """The task itself, or the tasks of an aggregate."""
    return list(getattr(task.metadata, "tasks", None) or [task])


@cache
def roles_of(name: str) -> tuple[Role, ...]:
    """The roles in which a task passes texts to an encoder: retrieval has queries and documents, as have
    pairs whose two sides differ.

    Raises:
        InputError: mteb has no such task, or it is not about text.
    """
    parts = parts_of(task_by_name(name))
    found = {role for part in parts for role in _roles_of_part(part)}
    return tuple(role for role in ROLES if role in found)


@cache
def category_of(name: str) -> TaskCategory:
    """mteb's name of the kind of a task; raises as `roles_of`."""
    return task_by_name(name).metadata.type


def _roles_of_part(task: AbsTask) -> list[Role]:
    if isinstance(task, AbsTaskRetrieval):
        return ["query", "document"]
    sides = (getattr(task, f"input{i}_prompt_type", None) for i in (1, 2))
    return [ROLE_OF_PROMPT[side] for side in sides]


@cache
def prompts_by_name(name: str) -> Prompts:
    """mteb's prompts for the texts of a task; raises as `roles_of` and `prompts_of`."""
    return prompts_of(task_by_name(name))


def prompts_of(task: AbsTask) -> dict[Role, str | None]:
    """mteb's prompts for the texts of a task, by role: from its metadata or, without one, from its class. The
    parts of an aggregate have to agree.

    Raises:
        InputError: they do not.
    """
    parts = parts_of(task)
    by_part: list[dict[Role, str | None]] = [{r: _prompt(part, r) for r in ROLES} for part in parts]
    if any(prompts != by_part[0] for prompts in by_part):
        raise InputError(
            f"the task {task.metadata.name} is the mean of {len(parts)} others, whose prompts in mteb "
            f"differ; give its words in 'instructions.tasks', or name the others as tasks"
        )
    return by_part[0]


def _prompt(task: AbsTask, role: Role) -> str | None:
    prompt = task.metadata.prompt
    if isinstance(prompt, dict):
        words: Any = dict(prompt).get(role)  # mteb knows queries and documents
    else:
        words = prompt or getattr(task, "abstask_prompt", None)
    return words or None


def load_data(task: AbsTask) -> None:
    """Fetch the data, from the hub or from what is cached of it.

    Raises:
        InputError: the data cannot be loaded, or lack a split.
    """
    name = task.metadata.name
    try:
        _require_judged(task)
        task.load_data()
    except InputError:
        raise
    except Exception as error:
        # Without a network the hub client, `datasets` and mteb's own loaders raise different errors.
        raise InputError(
            f"the data of the task {name} (dataset {_source(task)}) cannot be loaded: "
            f"{type(error).__name__}: {error}. Fetch it once on a machine with a network, or give the same "
            f"data as a task of kind 'local' with the path of a folder"
        ) from error

    for subset in task.hf_subsets:
        _require_splits(task, _splits_of(task, subset))


def _require_judged(task: AbsTask) -> None:
    """Before they are fetched: mteb's loader reads judgements of one split alone whatever it is asked for."""
    if not (isinstance(task, AbsTaskRetrieval) and _other_splits(task)):
        return
    if type(task).load_data is not AbsTaskRetrieval.load_data:
        return
    path, revision = task.metadata.dataset["path"], task.metadata.dataset["revision"]
    names = datasets.get_dataset_config_names(path, revision)
    for subset in task.hf_subsets if task.metadata.is_multilingual else ["default"]:
        judged = f"{subset}-qrels"
        if subset == "default":
            judged = "default" if "default" in names else "qrels"
        _require_splits(task, datasets.get_dataset_split_names(path, judged, revision=revision))


def _splits_of(task: AbsTask, subset: str) -> list[str]:
    """Those that mteb's loader gave."""
    if isinstance(task, AbsTaskRetrieval):
        task.convert_v1_dataset_format_to_v2(num_proc=None)  # as mteb does before it evaluates
    loaded: Any = task.dataset
    return list(loaded.get(subset, loaded))


def _require_splits(task: AbsTask, there: Sequence[str]) -> None:
    if missing := [split for split in _other_splits(task) if split not in there]:
        raise InputError(
            f"the task {task.metadata.name} has no split {quoted(missing[0])}; its dataset {_source(task)} "
            f"has {', '.join(there)} as mteb loads it; name one of these in 'splits'"
        )


def _other_splits(task: AbsTask) -> list[str]:
    """Splits that are asked for and that mteb does not list."""
    return [split for split in task.eval_splits if split not in task.metadata.eval_splits]


def load_task(config: HubTask) -> AbsTask:
    """The task with its data.

    Raises:
        InputError: see `find_task` and `load_data`.
    """
    task = find_task(config)
    for part in parts_of(task):
        load_data(part)
    return task


def hub_facts(config: HubTask, task: AbsTask) -> dict[str, Any]:
    """What identifies a hub task in a key: the commits of its data, and what is evaluated."""
    return {
        **config.model_dump(mode="json"),
        "dataset": _source(task),
        "subsets": list(task.hf_subsets),
        "splits": list(task.eval_splits),
        "main_score": task.metadata.main_score,
    }


def _source(task: AbsTask) -> Any:
    dataset: dict[str, Any] = dict(task.metadata.dataset)
    parts = getattr(task.metadata, "tasks", None)
    if parts:  # an aggregate has no data of its own
        return [_source(part) for part in parts]
    return {key: dataset[key] for key in ("path", "name", "revision") if key in dataset}


def _require_known(config: HubTask, field: str, known: list[str]) -> None:
    for name in getattr(config, field):
        if name not in known:
            raise InputError(
                f"the task {config.name} has no {field.removesuffix('s')} {quoted(name)}; it has "
                f"{', '.join(known)}"
            )
