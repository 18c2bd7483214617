"""The stage that scores a method on an evaluation task with mteb."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import TypeAdapter

from permafrost.flows.context import BackboneSource, RunContext
from permafrost.flows.graph import Node
from permafrost.flows.nodes.reading import sizes_of
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import train_texts
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors, MethodVectors
from permafrost.stages.mteb_evaluation import (
    Embedding,
    MtebTask,
    Role,
    evaluate_task,
)
from permafrost.storage.artifacts import Draft
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.progress import Progress

_TASK = TypeAdapter[MtebTask](MtebTask)


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
