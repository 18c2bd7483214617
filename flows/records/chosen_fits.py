"""The trained head that an experiment's latest run reports for a method: the one that dev chose of a grid."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from permafrost.flows.records.runs import latest_report
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.quoting import quoted


def chosen_fit(
    home: Path, experiment: str, method: str, task: str | None, seed: int | None
) -> ArtifactRef:
    """The fit of a method on a task with a seed.

    Args:
        home: where it lies.
        experiment: its name.
        method: its name in the experiment.
        task: not needed where the method was trained on one task.
        seed: not needed where it was trained with one seed.

    Raises:
        NotFoundError: there is no such run, method, task or seed, or the report is missing.
        InputError: the method is not trained, several fits are meant, or the seed is no whole number.
        CorruptDataError: the record of the run or the report is damaged.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise InputError(
            f"seed is {quoted(seed)}, of type {type(seed).__name__}; give a whole number, such as 0"
        )
    report = ArtifactStore(home).manifest(latest_report(home, experiment))
    entries: list[dict[str, Any]] = report.spec.config["cells"]
    of_method = [e for e in entries if e["method"] == method]
    _require(of_method, f"method {quoted(method)}", [e["method"] for e in entries], experiment)
    fits = [e for e in of_method if e["fit"] is not None]
    if not fits:
        raise InputError(
            f"{quoted(method)} of {quoted(experiment)} is not trained; permafrost.encode takes it as method="
        )
    on_task = fits if task is None else [e for e in fits if e["task"] == task]
    _require(
        on_task, f"task {quoted(task)} of {quoted(method)}", [e["task"] for e in fits], experiment
    )
    of_seed = on_task if seed is None else [e for e in on_task if e["seed"] == seed]
    _require(
        of_seed, f"seed {seed} of {quoted(method)}", [str(e["seed"]) for e in on_task], experiment
    )
    for name in ("task", "seed"):
        if len(values := {repr(e[name]): None for e in of_seed}) > 1:
            raise InputError(
                f"{quoted(method)} of {quoted(experiment)} has several {name}s; give {name}= one of "
                f"{', '.join(values)}"
            )
    (found,) = of_seed
    return parse_ref(found["fit"])


def _require(found: Sequence[object], what: str, known: Sequence[str], experiment: str) -> None:
    if not found:
        raise NotFoundError(
            f"{quoted(experiment)} has no {what}; there are {', '.join(dict.fromkeys(known))}"
        )
