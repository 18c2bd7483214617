"""Methods that have a vector for any text, and their nodes on the tasks of evaluations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.method import Method
from permafrost.flows.nodes.reading import Reading
from permafrost.flows.stage import Stage
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.mteb_evaluation.evaluate import TaskFacts
from permafrost.stages.mteb_evaluation.task import MtebTask
from permafrost.stages.mteb_evaluation.task import Role as TextRole
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.keys import to_plain


@dataclass(frozen=True)
class RoleStores:
    """Where the texts of one role are read: the stores of one recipe."""

    recipes: tuple[Recipe, ...]
    """One; several for the prompts of an ensemble."""
    identities: tuple[StoreIdentity, ...]
    """One per prompt of an ensemble; of an adapted backbone what is known before it is trained."""
    names: tuple[str, ...]
    """Their ids, or the names of those whose ids are not known yet."""
    reading: Reading


@dataclass(frozen=True)
class EvaluationSite:
    """One evaluation task, as the node of a method on it needs to know it."""

    task: str
    config: MtebTask
    facts: TaskFacts
    roles: Mapping[TextRole, RoleStores]
    instructed: Mapping[TextRole, str]
    fitted: Cell | None
    """Where the method was fitted; None for one that is not."""
    chosen: Input | None = None
    """What was chosen of the method by its scores on other tasks; None where nothing is."""
    chosen_on: tuple[Input, ...] = ()
    """The texts of those tasks."""
    tuned_on: tuple[Input, ...] = ()
    """The corpora on which the backbone that the method reads was tuned by another one."""


@dataclass(frozen=True)
class Choosing:
    """Something of a method that is chosen by its scores on an evaluation."""

    evaluation: str
    """Its name."""
    node: Callable[[str, Sequence[EvaluationSite]], Node]
    """What chooses: of a method by its name, by these tasks."""


class EvaluatedMethod(Method):
    """A method that has a vector for a text, whatever corpus that belongs to."""

    def evaluated(self) -> EvaluatedMethod:
        """Itself."""
        return self

    @abstractmethod
    def evaluated_by(self) -> type[Stage]:
        """The stage that scores it."""

    def without_vector(self) -> str | None:
        """Why it has none with these settings."""
        return None

    @abstractmethod
    def fitted_because(self) -> str | None:
        """What of it needs a task to be fitted on, as in "it is trained"; None if nothing does."""

    def choosing(self) -> Choosing | None:
        """By which evaluation something of it is chosen; None where nothing is."""
        return None

    @property
    def fitted_on_any_task(self) -> bool:
        """Whether it can be fitted on tasks that it is not scored on."""
        return False

    @property
    def joins_prompts(self) -> bool:
        """Whether the vectors of the prompts of an ensemble stand side by side."""
        return False

    @property
    def learns_from_texts(self) -> bool:
        """Whether it was fitted on texts as they are, so that instructions around them would be new to it."""
        return True

    def recipe_for(self, role: TextRole) -> str:
        """Under which texts of a role are read."""
        (recipe,) = set(self.recipes().values())
        return recipe

    @abstractmethod
    def vector_arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Arrays that its vectors are made of."""

    @abstractmethod
    def vector_identity(self) -> object:
        """What of its config decides the vectors, beside what was fitted."""

    @abstractmethod
    def fitted_loader(self) -> object:
        """What reads what was fitted."""

    def fitted_corpora(self, fitted: Cell) -> tuple[Input, ...]:
        """Corpora of which it has seen every text."""
        return ()

    def evaluation_node(
        self, name: str, seed: int, site: EvaluationSite, made: Node | None
    ) -> Node:
        """This method on an evaluation task.

        Args:
            name: of the method.
            seed: of what was fitted.
            site: the task.
            made: what was fitted.
        """
        stores = {r: [to_plain(i) for i in s.identities] for r, s in site.roles.items()}
        readings = {id(s.reading): s.reading for s in site.roles.values()}.values()
        inputs, source = [i for r in readings for i in r.inputs], None
        if made is not None:
            source = made.id
            assert site.fitted is not None
            inputs += [
                Input(name="fitted", ref=made.id, loader=import_path(self.fitted_loader())),
                _named("trained_on", site.fitted.corpus),
                *(_named("seen", c) for c in self.fitted_corpora(site.fitted)),
            ]
        elif site.chosen is not None:
            inputs.append(site.chosen)
            source = site.chosen.ref
        inputs += [_named("trained_on", corpus) for corpus in site.tuned_on]
        inputs += [_named("seen", texts) for texts in site.chosen_on]
        label = f"evaluate {name} · {site.task}" + (f" · seed {seed}" if self.is_random else "")
        return self.evaluated_by().node(
            label,
            {
                "task": site.facts.key,
                "embedding": {
                    "stores": stores,
                    "method": to_plain(self.vector_identity()),
                    "made_from": source,
                },
            },
            list(dict.fromkeys(inputs)),
            kinds=[
                *(recipe for s in site.roles.values() for recipe in s.recipes),
                self.vector_identity(),
                site.config,
            ],
            run_facts={
                **next(iter(readings)).run_facts,
                "stores": {role: s.names for role, s in site.roles.items()},
                "method": name,
                "task": site.task,
                "seed": seed,
                "config": site.config.model_dump(mode="json"),
                "instructions": site.instructed,
            },
            after=[a for r in readings for a in r.after],
        )


def _named(name: str, corpus: Input) -> Input:
    return corpus.model_copy(update={"name": name})
