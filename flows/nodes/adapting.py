"""Backbones that a fine-tuning of the experiment leaves behind, for other methods to read.

Their weights do not exist when keys are computed. In keys such a backbone is the base's digest with the key
of the fine-tuning, and its store a name, which the stage `store` turns into an id once the weights are there.
"""

from typing import Any

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, Resources
from permafrost.flows.nodes.extraction import source_of
from permafrost.flows.stage import Stage
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.adapted_stores import ADAPT, RECORD, STORE, AdaptedStore
from permafrost.storage.artifacts import Draft
from permafrost.storage.durable import write_json
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


def adapt_node(name: str, fitted: Node, base: ExtractTarget, names: dict[str, Any]) -> Node:
    """The backbone that a fine-tuning leaves.

    Args:
        name: of the backbone in the experiment.
        fitted: the fine-tuning.
        base: any extraction of the backbone that was trained.
        names: of method, task and seed.
    """
    identity = base.identity
    return Adapt.node(
        f"adapt {name}",
        {
            "weights_digest": identity.weights_digest,
            "tokenizer_digest": identity.tokenizer_digest,
            "compute_dtype": identity.compute_dtype,
        },
        (Input(name="tuned", ref=fitted.id, loader=loaders.TUNED_WEIGHTS),),
        run_facts={**names, "identity": to_plain(identity), "backbone": source_of(base)},
        resources=Resources(backbone=True),
    )


def store_node(name: str, adapted: Node, base: ExtractTarget) -> Node:
    """The store of an adapted backbone under a recipe.

    Args:
        name: of the backbone and the recipe.
        adapted: the backbone.
        base: the same extraction of the backbone that was trained.
    """
    # What is known of the weights before they exist, and tells them from all others.
    digest = f"{base.identity.weights_digest} {adapted.input('tuned').ref}"
    identity = base.identity.model_copy(update={"weights_digest": digest})
    backbone = Input(name="backbone", ref=adapted.id, loader=loaders.ADAPTED_BACKBONE)
    return NameStore.node(f"store {name}", {"store": to_plain(identity)}, (backbone,))


def planned_identity(store: Node) -> StoreIdentity:
    """What is known before training of the store that a node of `store_node` names; on disk is none of this
    id."""
    return StoreIdentity.model_validate(store.config["store"])


class Adapt(Stage):
    """Writes the backbone that a fine-tuning leaves as a model folder."""

    name = ADAPT

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.finetune.adapted_backbone import adapted_files, write_adapted

        target, tuned = context.bare_target(node), context.load(node.input("tuned"))
        # The one that nodes share would only take memory meanwhile.
        context.backbone.drop()
        write_adapted(tuned, target.files, target.identity.compute_dtype, draft.folder)
        names = {name: node.run_facts[name] for name in ("method", "task", "seed")}
        draft.summary = {**names, "weights_digest": adapted_files(draft.folder).weights_digest}


class NameStore(Stage):
    """Finds the identity of the store of an adapted backbone, now that its weights exist."""

    name = STORE

    @classmethod
    def code(cls, entries: object) -> dict[str, str]:
        """None, as of an extraction: its key is what features are found by."""
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        files = context.load(node.input("backbone"))
        digests = {
            "weights_digest": files.weights_digest,
            "tokenizer_digest": files.tokenizer_digest,
        }
        identity = planned_identity(node).model_copy(update=digests)
        found = AdaptedStore(identity=identity, backbone=node.input("backbone").ref)
        write_json(draft.folder / RECORD, found.model_dump(mode="json"))
        draft.summary = {"store_id": identity.store_id}
