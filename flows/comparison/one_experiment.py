"""Whether runs that stand in one table were asked the same: test examples, seeds, settings of methods."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from permafrost.flows.comparison.comparing import Side
from permafrost.flows.comparison.config_changes import ConfigChange, config_changes
from permafrost.flows.evaluations import texts_name
from permafrost.stages.metrics.comparison import same_test_set
from permafrost.stages.mteb_evaluation.suites import SUITE_NAMES, suite
from permafrost.stages.mteb_evaluation.task import Role
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.quoting import quoted

_AT_MOST = 3
"""Settings that are named."""


def require_same_tests(
    sides: Sequence[Side], tasks: Sequence[str], artifacts: ArtifactStore
) -> list[str]:
    """Check that all runs were scored on the same examples of each task.

    Returns:
        Sentences about tasks that are made from other data with the same test examples, and about those of
        which nothing is left that says so.

    Raises:
        InputError: the test examples are others; or nothing is left that says so, and settings of the task
            differ.
    """
    first, remarks = sides[0], list[str]()
    for side in sides[1:]:
        a, b, unknown = _name(first), _name(side), list[str]()
        for task in tasks:
            if _same_sources(first, side, task, artifacts):
                continue
            changes = _task_changes(first, side, task)
            said = _named(changes, a, b)
            same = _same_examples(first, side, task)
            if same is False or (same is None and changes):
                raise InputError(
                    f"the task {quoted(task)} is not the same in {a} and {b} "
                    f"({said or 'its settings are, and its data have changed in between'}); name runs of one "
                    "experiment on the same data"
                )
            if same is None:
                unknown.append(task)
            elif changes:
                remarks.append(
                    f"{task} is not made alike in {a} and {b}, but for its test examples: {said}."
                )
        if unknown:
            remarks.append(
                f"Nothing is left that says whether {a} and {b} have the same test examples of "
                f"{', '.join(unknown)}."
            )
    return remarks


def different_seeds(
    sides: Sequence[Side], rows: Sequence[Mapping[str, str]], tasks: Sequence[str]
) -> list[str]:
    """Sentences about rows whose means are over other numbers of seeds.

    Args:
        sides: the runs.
        rows: of each run: the method behind each row.
        tasks: those of the table.
    """
    found: dict[tuple[int, ...], dict[str, None]] = {}
    by_name = [{scored.name: scored for scored in side.methods} for side in sides]
    for row in rows[0]:
        for task in tasks:
            counts = tuple(
                len(known[task, methods[row]].tests)
                for known, methods in zip(by_name, rows, strict=True)
            )
            if len({*counts}) > 1:
                found.setdefault(counts, {})[row] = None
    return [
        "Means are over "
        + ", ".join(
            f"{n} {'seed' if n == 1 else 'seeds'} in {_name(side)}"
            for n, side in zip(counts, sides, strict=True)
        )
        + f": {', '.join(of)}."
        for counts, of in found.items()
    ]


def different_settings(sides: Sequence[Side], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Sentences about rows that are one method with other settings; arguments as for `different_seeds`."""
    first, remarks = sides[0], list[str]()
    for side, methods in zip(sides[1:], rows[1:], strict=True):
        found: dict[str, list[str]] = {}
        for row, method in methods.items():
            if rows[0][row] != method:
                continue
            changes = config_changes(_method(first, method), _method(side, method))
            if said := _named(changes, _name(first), _name(side)):
                found.setdefault(said, []).append(row)
        remarks += [
            f"Settings of {', '.join(of)} are not the same: {said}." for said, of in found.items()
        ]
    return remarks


def _name(side: Side) -> str:
    return side.label if side.run is None else side.run.name


def _same_sources(a: Side, b: Side, task: str, artifacts: ArtifactStore) -> bool:
    """Whether the corpora of a task were made from the same, as far as that is recorded."""
    ours, theirs = _corpora(a, task), _corpora(b, task)
    if not ours or ours.keys() != theirs.keys():
        return False
    for name, ref in ours.items():
        # Another version of our code alone makes another key.
        if ref != theirs[name] and (
            (config := _config(ref, artifacts)) is None
            or config != _config(theirs[name], artifacts)
        ):
            return False
    return True


def _corpora(side: Side, task: str) -> dict[str, str]:
    """The corpus of a task, or those of an evaluation task, by their names."""
    if side.run is None:
        return {}
    names = {task, *(texts_name(task, role) for role in get_args(Role))}
    return {name: ref for name, ref in side.run.begun.corpora.items() if name in names}


def _config(ref: str, artifacts: ArtifactStore) -> dict[str, Any] | None:
    """What a corpus was made from; None if it is gone or damaged."""
    try:
        return artifacts.manifest(parse_ref(ref)).spec.config
    except (CorruptDataError, InputError, NotFoundError):
        return None


def _same_examples(a: Side, b: Side, task: str) -> bool | None:
    """Whether predictions of a method are for the same examples; None if none are left on both sides."""
    theirs = {scored.name: scored for scored in b.methods}
    for scored in a.methods:
        if scored.task != task or scored.name not in theirs:
            continue
        if (same := same_test_set(scored, theirs[scored.name])) is not None:
            return same
    return None


def _task_changes(a: Side, b: Side, task: str) -> list[ConfigChange]:
    """In what a task differs; of evaluations with other names, under that of `a`."""
    (ours, before), (theirs, after) = _task(a, task), _task(b, task)
    if "tasks" not in (ours, theirs):
        theirs = ours
    return config_changes({ours: before}, {theirs: after})


def _task(side: Side, task: str) -> tuple[str, Mapping[str, Any]]:
    """The section that a task is in, and there the settings of the task and those that it shares."""
    config = side.config or {}
    for name, evaluation in config.get("evaluations", {}).items():
        if (own := _in_evaluation(evaluation, task)) is not None:
            return f"evaluations.{name}", own
    tasks = config.get("tasks", {})
    return "tasks", {task: tasks[task]} if task in tasks else {}


def _in_evaluation(evaluation: Mapping[str, Any], task: str) -> dict[str, Any] | None:
    """What an evaluation says of one of its tasks, without which methods are scored; None if it is none."""
    tasks: dict[str, Any] = {}
    for name in evaluation.get("suites", ()):
        if name in SUITE_NAMES and task in (of_suite := suite(name)):
            tasks[task] = of_suite[task].model_dump(mode="json")
    tasks |= evaluation.get("tasks", {})
    if task not in tasks:
        return None
    instructions = dict(evaluation.get("instructions", {}))
    words = instructions.pop("tasks", {})
    instructions.pop("methods", None)
    if task in words:
        instructions["tasks"] = {task: words[task]}
    return {
        "fitted_on": evaluation.get("fitted_on"),
        "instructions": instructions,
        "tasks": {task: tasks[task]},
    }


def _method(side: Side, method: str) -> Mapping[str, Any]:
    return (side.config or {}).get("methods", {}).get(method, {})


def _named(changes: Sequence[ConfigChange], a: str, b: str) -> str:
    said = [change.between(a, b) for change in changes[:_AT_MOST]]
    if len(changes) > _AT_MOST:
        said.append(f"and {len(changes) - _AT_MOST} more")
    return "; ".join(said)
