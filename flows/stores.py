"""Which feature stores an experiment reads: one per recipe, one per prompt of an ensemble."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from flows.evaluations import (
    evaluation_cells,
    evaluation_recipes,
    evaluation_texts,
    recipe_of,
    roles_of,
    texts_name,
    whitened_for_evaluations,
)
from flows.experiment import DEFAULT_RECIPE, EmbedMethod, Experiment, HeadMethod, LayersMethod
from flows.probes import probe_arrays, reads_one_store
from stages.embed import required_arrays
from stages.extraction.backbone import Backbone, load_backbone
from stages.extraction.capture import in_order
from stages.extraction.recipes import expand_recipe
from stages.extraction.target import ExtractTarget, Foundation, lay_foundation
from stages.mteb_evaluation import Role
from storage.errors import InputError
from storage.quoting import quoted

_LABEL = 60
"""Characters of a recipe's name in a label, at most."""


@dataclass(frozen=True)
class RecipeStores:
    """What is extracted under one recipe of the experiment."""

    recipe: str
    """Its name in the experiment."""
    targets: tuple[ExtractTarget, ...]
    """One; several for the prompts of an ensemble, in their order."""
    tasks: tuple[str, ...]
    """Whose texts."""

    def labels(self) -> list[str]:
        """One per target, for people."""
        name = "" if self.recipe == DEFAULT_RECIPE else f" {_short(self.recipe)}"
        if len(self.targets) == 1:
            return [f"extract{name}"]
        return [f"extract{name}[{i}]" for i in range(1, len(self.targets) + 1)]

    def inputs(self, arrays: Sequence[str]) -> tuple[str, ...]:
        """Keys of these arrays of every store."""
        return tuple(f"features/{t.identity.store_id}/{a}" for t in self.targets for a in arrays)


def _short(name: str) -> str:
    """A name as a line of progress has room for it; instructions are long."""
    return name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…"


def resolve_stores(experiment: Experiment) -> dict[str, RecipeStores]:
    """The stores by recipe; recipes that nothing reads are left out.

    Raises:
        InputError: the backbone cannot be used, cannot do what a recipe asks for, has not the layers that
            are asked for, or a head reads an array that is not captured.
    """
    base = lay_foundation(experiment.backbone, experiment.store_dtype, experiment.codec)
    found: dict[str, RecipeStores] = {}
    for name, recipe in (experiment.all_recipes | evaluation_recipes(experiment)).items():
        arrays, tasks = _needs(experiment, base, name)
        if name == DEFAULT_RECIPE:
            _require_captured(experiment, arrays)
        if arrays:
            members = expand_recipe(recipe)
            if len(members) > 1 and name in _need_one_store(experiment):
                raise InputError(
                    f"the recipe {quoted(name)} is an ensemble of {len(members)} prompts, which heads and "
                    "probes "
                    "of tokens or geometry cannot read; use it for embed methods, or take one prompt of it"
                )
            targets = tuple(base.target(member, in_order(arrays)) for member in members)
            named = (*experiment.tasks, *evaluation_texts(experiment))
            found[name] = RecipeStores(name, targets, tuple(t for t in named if t in tasks))
    return found


def _needs(experiment: Experiment, base: Foundation, name: str) -> tuple[set[str], set[str]]:
    """Arrays and tasks of everything that reads a recipe."""
    arrays, tasks = set[str](), set[str]()
    if name == DEFAULT_RECIPE and experiment.capture is not None:
        arrays.update(experiment.capture.arrays(base.sizes))
        tasks.update(experiment.tasks)
    for method in experiment.embed_methods.values():
        if method.recipe == name:
            arrays.update(required_arrays(method.config, base.sizes))
            tasks.update(experiment.tasks_of(method))
    for method in experiment.linear_methods.values():
        if method.recipe == name:
            arrays.update(a for v in method.vectors for a in required_arrays(v, base.sizes))
            tasks.update(experiment.tasks_of(method))
    for method in experiment.layers_methods.values():
        if method.recipe == name:
            arrays.update(method.latents.arrays(base.sizes))
            tasks.update(experiment.tasks_of(method))
    for pretraining in experiment.pretrainings.values():
        if pretraining.latents.recipe == name:
            arrays.update(pretraining.latents.arrays(base.sizes))
            tasks.add(pretraining.task)
    for probe in experiment.probes.values():
        if probe.recipe == name and (read := probe_arrays(probe, base.sizes)):
            tasks.update(probe.tasks)
            arrays.update(read)
    known = evaluation_texts(experiment)
    for cell in evaluation_cells(experiment):
        method = experiment.methods[cell.method]
        assert isinstance(method, EmbedMethod | HeadMethod | LayersMethod)
        roles: list[Role] = [r for r in roles_of(cell.config) if recipe_of(method, r, cell) == name]
        if roles and isinstance(method, EmbedMethod):
            arrays.update(required_arrays(method.config, base.sizes))
        tasks.update(t for role in roles if (t := texts_name(cell.task, role)) in known)
    for method_name, task in whitened_for_evaluations(experiment):
        if experiment.embed_methods[method_name].recipe == name:
            tasks.add(task)
    return arrays, tasks


def _need_one_store(experiment: Experiment) -> set[str]:
    """Recipes under which heads are trained or tokens are probed: those have one store."""
    found = {m.recipe for m in experiment.layers_methods.values()}
    found.update(p.latents.recipe for p in experiment.pretrainings.values())
    found.update(p.recipe for p in experiment.probes.values() if reads_one_store(p))
    return found | ({DEFAULT_RECIPE} if experiment.capture is not None else set[str]())


def _require_captured(experiment: Experiment, captured: set[str]) -> None:
    for name, method in experiment.methods.items():
        if not isinstance(method, HeadMethod):
            continue
        task = experiment.tasks_of(method)[0]  # what it reads does not depend on the task
        for array in experiment.fit_config(method, task, 0).arrays():
            if array not in captured:
                raise InputError(
                    f"method {quoted(name)} reads {array}, but the experiment captures only "
                    f"{', '.join(sorted(captured)) or 'nothing'}; add it to 'capture' or change the "
                    f"method's layer"
                )


@dataclass
class SharedBackbone:
    """A backbone that several extractions use one after the other, loaded when the first one needs it."""

    extracting: threading.Lock = field(default_factory=threading.Lock)
    """Held while texts that an evaluation asks for are extracted: a store has one writer."""
    _loaded: Backbone | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, target: ExtractTarget, device: str) -> Backbone:
        """The backbone of `target`; all targets of an experiment have the same one."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load_backbone(target.files, target.identity.compute_dtype, device)
            return self._loaded

    def drop(self) -> None:
        """Free its memory."""
        with self._lock:
            self._loaded = None
