"""The feature stores of an experiment: one per recipe, or one per prompt of an ensemble."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

from permafrost.flows.evaluations import evaluation_texts, instructed_recipes, texts_name
from permafrost.flows.experiment import DEFAULT_RECIPE, Experiment
from permafrost.flows.recipes import recipe_on
from permafrost.stages.extraction.capture import ArrayName, in_order, meant_by, parse_capture
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractTarget, ResolvedBackbone
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_LABEL = 60
"""Maximum characters of a recipe's name in a label."""


@dataclass(frozen=True)
class RecipeStores:
    """The extractions under one recipe of the experiment."""

    recipe: str
    """Its name in the experiment."""
    backbone: str | None
    """An adapted backbone by its name; None for the experiment's own."""
    targets: tuple[ExtractTarget, ...]
    """One target, or one per prompt of an ensemble, in order. Files are those of the experiment's
    backbone, also for an adapted one, which has none yet; its identities say what is known of it."""
    names: tuple[str, ...]
    """One per target: the id of the store, or the name of one whose id is not known before training."""
    tasks: tuple[str, ...]
    """Tasks whose texts are extracted."""

    def labels(self, task: str) -> list[str]:
        """Display names, one per target."""
        name = "" if self.recipe == DEFAULT_RECIPE else f"{_short(self.recipe)} · "
        name += "" if self.backbone is None else f"{_short(self.backbone)} · "
        if len(self.targets) == 1:
            return [f"extract {name}{task}"]
        return [f"extract {name}{task} [{i}]" for i in range(1, len(self.targets) + 1)]


def _short(name: str) -> str:
    """A name shortened for progress lines, as instructions are long."""
    return name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…"


def all_recipes(experiment: Experiment) -> dict[str, Recipe]:
    """The experiment's recipes, and those with the instruction of an evaluation task."""
    own = experiment.all_recipes
    return own | instructed_recipes(experiment.vector_cells, own)


def resolve_stores(experiment: Experiment, base: ResolvedBackbone) -> dict[str, RecipeStores]:
    """The stores by recipe, or recipe on an adapted backbone (`recipe_on`); unused ones are left out.

    Raises:
        InputError: the backbone cannot do what a recipe asks for, lacks a layer, or a method reads an array
            that is not captured.
    """
    stores: dict[str, RecipeStores] = {}
    needs = _needs(experiment, base)
    _require_captured(experiment, needs[DEFAULT_RECIPE].arrays, base.sizes)
    single = _single_store_recipes(experiment)
    named = (*experiment.tasks, *evaluation_texts(experiment.evaluations))
    recipes = all_recipes(experiment).items()
    for backbone, (own, recipe) in product((None, *experiment.all_adapted), recipes):
        name = recipe_on(own, backbone)
        if not (need := needs.get(name, _Need())).arrays:
            continue
        prompts = recipe.members()
        if len(prompts) > 1 and name in single:
            raise InputError(
                f"the recipe {quoted(name)} is an ensemble of {len(prompts)} prompts, which heads and probes "
                "of tokens or geometry cannot read; use it for embed methods, or take one prompt of it"
            )
        targets = tuple(base.target(member, in_order(need.arrays)) for member in prompts)
        tasks = tuple(task for task in named if task in need.tasks)
        ids = tuple(target.identity.store_id for target in targets)
        stores[name] = RecipeStores(own, backbone, targets, ids, tasks)
    return stores


class _Need:
    """Arrays and tasks of everything that uses a recipe."""

    def __init__(self) -> None:
        self.arrays, self.tasks = set[str](), set[str]()


def _needs(experiment: Experiment, base: ResolvedBackbone) -> Mapping[str, _Need]:
    sizes, needs = base.sizes, dict[str, _Need]()

    def need(recipe: str) -> _Need:
        return needs.setdefault(recipe, _Need())

    need(DEFAULT_RECIPE)
    if experiment.capture is not None:
        need(DEFAULT_RECIPE).arrays.update(experiment.capture.arrays(sizes))
        need(DEFAULT_RECIPE).tasks.update(experiment.tasks)
    elsewhere = experiment.fitted_elsewhere
    for name, method in experiment.methods.items():
        on = method.adapted_backbone
        with _named(f"methods.{name}"):
            reads = [*method.reads(sizes).items()]
            if on is not None:
                # What it reads of the experiment's own backbone is in `capture`.
                reads += [(recipe, method.captured()) for recipe in method.recipes().values()]
                for array in method.captured():
                    ArrayName.parse(array).require(sizes)
        for recipe, arrays in ((recipe_on(own, on), arrays) for own, arrays in reads):
            need(recipe).arrays.update(arrays)
            need(recipe).tasks.update(experiment.tasks_of(name))
            need(recipe).tasks.update(task for other, task in elsewhere if other == name)
    for name, pretraining in experiment.pretrainings.items():
        with _named(f"pretrainings.{name}"):
            need(pretraining.latents.recipe).arrays.update(pretraining.latents.arrays(sizes))
        need(pretraining.latents.recipe).tasks.update(pretraining.tasks)
    for probe in experiment.probes.values():
        if read := probe.reads(sizes):
            need(probe.recipe).arrays.update(read)
            need(probe.recipe).tasks.update(probe.tasks)
    for cell in experiment.vector_cells:
        for role, recipe in cell.recipes.items():
            on = recipe_on(recipe, experiment.backbone_of(cell))
            need(on).arrays.update(cell.method.vector_arrays(sizes))
            need(on).tasks.add(texts_name(cell.task, role))
    return needs


@contextmanager
def _named(entry: str) -> Generator[None]:
    """Errors say which entry of the experiment asks for what the backbone has not."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{entry}: {error}") from error


def _single_store_recipes(experiment: Experiment) -> set[str]:
    """Recipes under which heads are trained or tokens are probed, which must have a single store."""
    single = {
        recipe_on(r, m.adapted_backbone)
        for m in experiment.methods.values()
        for r in m.single_store_recipes()
    }
    single.update(
        recipe_on(r, m.adapted_backbone)
        for m in experiment.methods.values()
        if m.adapted_backbone is not None and m.captured()
        for r in m.recipes().values()
    )
    single.update(p.latents.recipe for p in experiment.pretrainings.values())
    single.update(p.recipe for p in experiment.probes.values() if p.single_store)
    return single | ({DEFAULT_RECIPE} if experiment.capture is not None else set[str]())


def _require_captured(experiment: Experiment, captured: set[str], sizes: BackboneSizes) -> None:
    for name, method in experiment.methods.items():
        for array in method.captured():
            if method.adapted_backbone is None and array not in captured:
                if (meant := meant_by(array, sizes)) is not None:
                    raise InputError(
                        f"method {quoted(name)} reads {array}, which is how 'capture' names it; its layer is "
                        f"the name of the array: write layer: {meant}"
                    )
                last = parse_capture("hidden=last").arrays(sizes)[0]
                read = f"{array} (hidden/last is the same)" if array == last else array
                there = f"only {', '.join(sorted(captured))}" if captured else "nothing"
                raise InputError(
                    f"method {quoted(name)} reads {read}, but the experiment captures {there}; add it to "
                    "'capture' or change the method's layer"
                )
