"""The stage that scores a method on an evaluation task with mteb."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.nodes.corpora import require_task_unchanged
from permafrost.flows.nodes.reading import sizes_of
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.overlap import texts_of_splits
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.mteb_evaluation.evaluate import evaluate_task
from permafrost.stages.mteb_evaluation.task import EVALUATION_TASKS, Role
from permafrost.stages.mteb_evaluation.vectors import Embedding
from permafrost.storage.adapted_stores import open_store
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress

if TYPE_CHECKING:
    from permafrost.stages.encoder.vectors import TextVectors


class Evaluate(Stage):
    """Scores a method on a task."""

    name = "evaluate"

    @classmethod
    @abstractmethod
    def vectors(cls, node: Node, context: RunContext) -> "TextVectors":
        """From the rows of texts to their vectors."""

    @classmethod
    def choice(cls, node: Node, context: RunContext) -> Mapping[str, str]:
        """What of the method was chosen on dev, for tables."""
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        facts = node.run_facts
        embedding = Embedding(
            facts["method"],
            cls.vectors(node, context),
            partial(features_of, sizes_of(node), context, facts["stores"]),
            node.config["embedding"],
            progress,
            trained_on=_trained_on(node, context),
            choice=cls.choice(node, context),
        )
        config = EVALUATION_TASKS.validate(facts["config"])
        result = evaluate_task(config, facts["task"], embedding)
        require_task_unchanged(config, node.config["task"], node.label)
        result.save(draft.folder)
        draft.summary = {
            **{n: facts[n] for n in ("method", "task", "seed")},
            **{k: result.metrics[k] for k in ("metric", "test", "texts_in_train")},
            "instructions": facts["instructions"],
        }


def n_members(node: Node) -> int:
    """Prompts of the ensemble whose vectors are joined."""
    return n_prompts(node.config["embedding"]["stores"])


def n_prompts(stores: Mapping[Role, Sequence[object]]) -> int:
    """Prompts of an ensemble: the stores of any one role."""
    return len(next(iter(stores.values())))


def _trained_on(node: Node, context: RunContext) -> frozenset[str] | None:
    """Digests of the texts that a method learnt from, or was chosen on; None of one that learnt from none."""
    known: frozenset[str] | None = None
    for source in node.inputs_named("trained_on"):
        corpus: Corpus = context.corpus(source)
        texts = texts_of_splits(corpus.examples, ("train", "dev"))
        known = (known or frozenset()) | {corpus.digests[int(text)] for text in texts}
    for source in node.inputs_named("seen"):
        # Whatever their split.
        known = (known or frozenset()) | frozenset(context.corpus(source).digests)
    return known


def features_of(
    sizes: BackboneSizes,
    context: RunContext,
    stores: Mapping[Role, Sequence[str]],
    role: Role,
    texts: Mapping[str, str],
) -> Sequence[StoredFeatures]:
    """Stored features of texts in a role, one per prompt of an ensemble.

    Args:
        sizes: of the backbone.
        context: of the run.
        stores: by role, their ids or names.
        role: of the texts.
        texts: by digest.
    """
    opened = [open_store(context.home, name) for name in stores[role]]
    return [StoredFeatures(store, sizes, list(texts)) for store in opened]
