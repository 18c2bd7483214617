"""Backbones that methods of the experiment have tuned, under names by which other methods read them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from permafrost.flows.methods.method import Method
from permafrost.flows.recipes import recipe_on
from permafrost.stages.bounds import MAX_SEED
from permafrost.storage.quoting import quoted


class AdaptedBackbone(BaseModel):
    """One fine-tuning of the experiment, whose backbone others read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    """A method that trains the backbone."""
    task: str
    """On which it is trained."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Of which training."""

    @property
    def usual_name(self) -> str:
        """What it is called where the experiment gives it no name."""
        return f"{self.method} · {self.task} · seed {self.seed}"


@dataclass(frozen=True)
class Tunings:
    """What an experiment trains."""

    methods: Mapping[str, Method]
    tasks_of: Callable[[str], tuple[str, ...]]
    """The tasks that a method is scored on."""
    seeds_of: Callable[[str], tuple[int, ...]]
    """The seeds of a method."""
    recipes: Collection[str]


def check_adapted(adapted: Mapping[str, AdaptedBackbone], trained: Tunings) -> None:
    """Check that adapted backbones are trained in the experiment, and that those which are read exist.

    Raises:
        ValueError: the first problem.
    """
    for name, one in adapted.items():
        _check_one(f"adapted.{name}", one, trained)
        for recipe in trained.recipes:
            if (taken := recipe_on(recipe, name)) in trained.recipes:
                raise ValueError(
                    f"recipes has the name {quoted(taken)}, which the recipe {quoted(recipe)} has on the "
                    f"adapted backbone {quoted(name)}; rename one of them"
                )
    for name, method in trained.methods.items():
        read = method.adapted_backbone
        if read is not None and read not in adapted:
            raise ValueError(
                f"methods.{name}.backbone names the adapted backbone {quoted(read)}; there are "
                f"{', '.join(adapted) or 'none'} in 'adapted'"
            )


def check_usual_names(
    adapted: Mapping[str, AdaptedBackbone], evaluated: Iterable[AdaptedBackbone]
) -> None:
    """Check that no adapted backbone is called what another one is called without a name.

    Raises:
        ValueError: one is.
    """
    for one in evaluated:
        named = adapted.get(one.usual_name, one)
        if named != one:
            raise ValueError(
                f"adapted has the name {quoted(one.usual_name)} for what {quoted(named.method)} tunes on "
                f"{quoted(named.task)} with seed {named.seed}; evaluations call that of {quoted(one.method)} "
                "so, which is another one: rename it"
            )


def _check_one(where: str, one: AdaptedBackbone, trained: Tunings) -> None:
    tuned = {name: m for name, m in trained.methods.items() if m.tuning() is not None}
    there = f"there are {', '.join(tuned)}" if tuned else "there is none of kind finetuned"
    if (method := trained.methods.get(one.method)) is None:
        raise ValueError(f"{where}.method names {quoted(one.method)}; {there}")
    if (train := method.tuning()) is None:
        raise ValueError(
            f"{where}.method names {quoted(one.method)}, which is of kind {method.kind} and leaves the "
            f"backbone as it is; name one that trains it: {there}"
        )
    if not train.changes_states:
        raise ValueError(
            f"{where}.method names {quoted(one.method)}, which with 'train: {train.kind}' changes nothing of "
            "the backbone; read the experiment's own, or name a method that trains it"
        )
    if one.task not in (tasks := trained.tasks_of(one.method)):
        raise ValueError(
            f"{where}.task is {quoted(one.task)}, but {quoted(one.method)} is trained on "
            f"{', '.join(tasks) or 'none'}"
        )
    if one.seed not in (seeds := trained.seeds_of(one.method)):
        raise ValueError(
            f"{where}.seed is {one.seed}, but {quoted(one.method)} is trained with the seeds "
            f"{', '.join(map(str, seeds))}; name one of them, or add it to 'seeds'"
        )
