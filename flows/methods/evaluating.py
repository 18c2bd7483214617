"""Methods on evaluation tasks: what a method must have for that, and the stage that scores it with mteb."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import TypeAdapter

from permafrost.flows.context import BackboneSource, RunContext
from permafrost.flows.graph import Input, Node, Resources, import_path
from permafrost.flows.methods.method import Cell, Method
from permafrost.flows.methods.reading import Reading, sizes_of
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import train_texts
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors, MethodVectors
from permafrost.stages.extraction.recipes import Recipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.mteb_evaluation import (
    Embedding,
    HubTask,
    MtebTask,
    Role,
    TaskFacts,
    evaluate_task,
)
from permafrost.stages.mteb_evaluation.tasks import ROLES
from permafrost.storage.artifacts import Draft
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress

_TASK = TypeAdapter[MtebTask](MtebTask)


def roles_of(config: MtebTask) -> tuple[Role, ...]:
    """Roles in which a task asks for texts; of a task from the hub, all in which it may."""
    return ROLES if isinstance(config, HubTask) else config.roles


@dataclass(frozen=True)
class RoleStores:
    """Where the texts of one role are read: the stores of one recipe."""

    recipes: tuple[Recipe, ...]
    """One; several for the prompts of an ensemble."""
    identities: tuple[StoreIdentity, ...]
    """One per prompt of an ensemble."""
    arrays: tuple[str, ...]
    """Everything that is extracted into them."""
    reading: Reading


@dataclass(frozen=True)
class EvaluationSite:
    """One evaluation task, as the node of a method on it needs to know it."""

    task: str
    config: MtebTask
    facts: TaskFacts
    roles: Mapping[Role, RoleStores]
    instructed: Mapping[Role, str]
    backbone: BackboneSource
    fitted: Cell | None
    """Where the method was fitted; None for one that is not."""


class EvaluatedMethod(Method):
    """A method that has a vector for a text, whatever corpus that belongs to."""

    @abstractmethod
    def evaluated_by(self) -> "type[Evaluate]":
        """The stage that scores it."""

    def without_vector(self) -> str | None:
        """Why it has no vector for a single text; None if it has one."""
        return None

    @abstractmethod
    def fitted_because(self) -> str | None:
        """What of it needs a task to be fitted on, as in "it is trained"; None if nothing does."""

    @property
    def fitted_on_any_task(self) -> bool:
        """Whether it can be fitted on tasks that it is not scored on."""
        return False

    @property
    def learns_from_texts(self) -> bool:
        """Whether it was fitted on texts as they are, so that instructions around them would be new to it."""
        return True

    def recipe_for(self, role: Role) -> str:
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
        inputs = [i for r in readings for i in r.inputs]
        if made is not None:
            assert site.fitted is not None
            inputs += [
                Input(name="fitted", ref=made.id, loader=import_path(self.fitted_loader())),
                site.fitted.corpus.model_copy(update={"name": "trained_on"}),
                *(c.model_copy(update={"name": "seen"}) for c in self.fitted_corpora(site.fitted)),
            ]
        label = f"evaluate {name} · {site.task}" + (f" · seed {seed}" if self.is_random else "")
        return self.evaluated_by().node(
            label,
            {
                "task": site.facts.key,
                "embedding": {
                    "stores": stores,
                    "method": to_plain(self.vector_identity()),
                    "made_from": None if made is None else made.id,
                },
            },
            inputs,
            kinds=[recipe for s in site.roles.values() for recipe in s.recipes],
            run_facts={
                **next(iter(readings)).run_facts,
                "method": name,
                "task": site.task,
                "seed": seed,
                "config": site.config.model_dump(mode="json"),
                "instructions": site.instructed,
                "arrays": {i.store_id: s.arrays for s in site.roles.values() for i in s.identities},
                "backbone": site.backbone,
            },
            after=[a for r in readings for a in r.after],
            resources=_resources(site),
        )


def _resources(site: EvaluationSite) -> Resources:
    """Texts of a task from the hub are known once it runs, and extracted then."""
    if not isinstance(site.config, HubTask):
        return Resources()
    stores = {i.store_id: None for role in site.roles.values() for i in role.identities}
    return Resources(backbone=True, stores=tuple(stores))


class Evaluate(Stage):
    """Scores a method on a task."""

    name = "evaluate"

    @classmethod
    @abstractmethod
    def vectors(
        cls, node: Node, context: RunContext
    ) -> HeadVectors | LatentVectors | MethodVectors:
        """From the rows of texts to their vectors."""

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        facts, n_computed = node.run_facts, list[int]()
        vectors = cls.vectors(node, context)
        embedding = Embedding(
            facts["method"],
            vectors,
            partial(_features, node, context, n_computed, progress),
            node.config["embedding"],
            progress,
            n_parameters=0 if isinstance(vectors, MethodVectors) else vectors.head.n_parameters,
            trained_on=_trained_on(node, context),
        )
        config = _TASK.validate_python(facts["config"])
        result = evaluate_task(config, facts["task"], embedding)
        result.save(draft.folder)
        draft.summary = {
            **{n: facts[n] for n in ("method", "task", "seed")},
            **{k: result.metrics[k] for k in ("metric", "test", "texts_in_train")},
            "instructions": facts["instructions"],
            "n_tokens_computed": sum(n_computed),
        }


def n_members(node: Node) -> int:
    """Prompts of the ensemble whose vectors are joined."""
    return len(next(iter(node.config["embedding"]["stores"].values())))


def _trained_on(node: Node, context: RunContext) -> frozenset[str] | None:
    """Digests of the texts that a method learnt from; None of one that learnt from none."""
    known: frozenset[str] | None = None
    for source in node.inputs_named("trained_on"):
        corpus: Corpus = context.corpus(source)
        known = frozenset(corpus.digests[int(text)] for text in train_texts(corpus.examples))
    for source in node.inputs_named("seen"):
        # Whatever their split.
        known = (known or frozenset()) | frozenset(context.corpus(source).digests)
    return known


def _features(
    node: Node,
    context: RunContext,
    n_computed: list[int],
    progress: Progress,
    role: Role,
    texts: Mapping[str, str],
) -> Sequence[StoredFeatures]:
    """Stored features of texts; those that no corpus announced are extracted now, one thread at a time."""
    where = BackboneSource.model_validate(node.run_facts["backbone"])
    features = list[StoredFeatures]()
    for recorded in node.config["embedding"]["stores"][role]:
        identity = StoreIdentity.model_validate(recorded)
        # All that this store is for: other methods will ask for the same texts.
        arrays = tuple(node.run_facts["arrays"][identity.store_id])
        store, n_tokens = context.stored(identity, arrays, where, texts, progress)
        n_computed.append(n_tokens)
        features.append(StoredFeatures(store, sizes_of(node), list(texts)))
    return features
