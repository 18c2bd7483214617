"""Runs of the backbone over the texts of one corpus, into one feature store."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from permafrost.flows.context import BackboneSource, RunContext
from permafrost.flows.graph import Input, Node, Resources, import_path
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.extraction.device import device_name
from permafrost.stages.extraction.lengths import refuse_too_long
from permafrost.stages.extraction.planning import ExtractionPlan, finished_plan, plan_extraction
from permafrost.stages.extraction.recipes.inputs import UnreadableTextError
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.adapted_stores import adapted_store, load_adapted_store
from permafrost.storage.artifacts import Draft, parse_ref
from permafrost.storage.durable import write_json
from permafrost.storage.errors import RemovedError
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress
from permafrost.storage.replica import replica_of


def source_of(target: ExtractTarget) -> BackboneSource:
    """Where the backbone of a target lies."""
    files = target.files
    return BackboneSource(
        source=files.source, revision=files.revision or "main", codec=target.codec
    )


def extract_node(
    target: ExtractTarget,
    corpus: Input,
    label: str,
    store: Node | None = None,
    read_from: Mapping[str, str] | None = None,
) -> Node:
    """The extraction of the texts of a corpus.

    Args:
        target: what is extracted; for an adapted backbone the same of the one that was trained.
        corpus: whose texts.
        label: display name.
        store: of an adapted backbone: the node that finds out which store that is.
        read_from: by split of the corpus, that of its source, for messages on rows.
    """
    identity, inputs = to_plain(target.identity), [corpus]
    run_facts: dict[str, object] = {"backbone": source_of(target), "read_from": read_from or {}}
    if store is not None:
        run_facts["base"], identity = identity, store.config["store"]
        inputs.append(Input(name="store", ref=store.id, loader=import_path(load_adapted_store)))
    return Extract.node(
        label,
        {"store": identity, "arrays": target.arrays},
        inputs,
        run_facts=run_facts,
        kinds=(target.recipe,),
        resources=Resources(
            backbone=True,
            stores=(target.identity.store_id if store is None else store.ref.key,),
        ),
    )


class Extract(Stage):
    """Runs the backbone over exactly the cells that are missing."""

    name = "extract"

    @classmethod
    def code(cls, entries: object) -> dict[str, str]:
        """None: hours of compute are not lost to a refactor; `verify --recompute` guards it instead."""
        return {}

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.extraction.extract import extract

        corpus, target = context.corpus(node.input("corpus")), target_of(node, context)
        _require_trained(node, target)
        runtime = context.runtime.extract
        load = partial(context.backbone.load, target, runtime.device, progress=progress)
        if context.segments is not None and replica_of(context.home) is None:
            # Others compute, and have the GPU for that; here weights are read.
            load = partial(context.backbone.weights, target, runtime.device)
        with _rows_named(node, corpus):
            report = extract(
                target,
                context.home,
                corpus.texts,
                corpus.digests,
                runtime,
                progress,
                load=load,
                pool=context.segments,
            )
        draft.summary = {
            "store_id": report.store.store_id,
            "n_texts": len(corpus.texts),
            "n_tokens_computed": report.n_tokens,
            "n_cells_computed": report.n_cells,
            "n_truncated": report.n_truncated,
            "split_from": report.split_from,
        }
        write_json(draft.folder / "view.json", draft.summary)

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        runtime = context.runtime.extract
        device_name(runtime.device)
        if runtime.too_long == "refuse" and context.is_known(source := node.input("corpus")):
            corpus, target = context.corpus(source), target_of(node, context)
            with _rows_named(node, corpus):
                refuse_too_long(
                    target, context.home, corpus.texts, corpus.digests, runtime.block_texts
                )

    @classmethod
    def is_done(cls, node: Node, context: RunContext) -> bool:
        """Published, and the feature store still holds every cell."""
        if not context.artifacts.is_done(node.ref):
            return False
        plan = planned(node, context)
        return plan is not None and plan.nothing_to_do


def target_of(node: Node, context: RunContext) -> ExtractTarget:
    """What a node extracts; of an adapted backbone that is not trained yet, what is known before."""
    identity = StoreIdentity.model_validate(node.config["store"])
    where = BackboneSource.model_validate(node.run_facts["backbone"])
    arrays = tuple(node.config["arrays"])
    for source in node.inputs_named("store"):
        known = adapted_store(context.artifacts, parse_ref(source.ref).key)
        identity = identity if known is None else known.identity
        if known is None or not context.artifacts.is_done(parse_ref(known.backbone)):
            base = StoreIdentity.model_validate(node.run_facts["base"])
            return replace(context.target(base, arrays, where), identity=identity)
        where = where.model_copy(update={"source": known.backbone, "revision": "main"})
    return context.target(identity, arrays, where)


def _require_trained(node: Node, target: ExtractTarget) -> None:
    """Raises: RemovedError: an adapted backbone is gone, and the weights at hand are those of its base."""
    if target.identity.weights_digest == target.files.weights_digest:
        return
    raise RemovedError(
        f"the adapted backbone that {node.label} reads was removed since this run began (by gc, drop or "
        "repair, or by hand); nothing was written. Run the same command again, which makes it again"
    )


def planned(node: Node, context: RunContext) -> ExtractionPlan | None:
    """What the feature store lacks for a node; None while its texts are not known."""
    if not context.is_known(source := node.input("corpus")):
        return None
    target = target_of(node, context)
    # Mostly nothing is missing, which digests alone tell: no text is read for it.
    if (digests := context.stored_digests(source)) is not None:
        finished = finished_plan(target, context.home, digests)
        if finished is not None:
            return finished
    corpus = context.corpus(source)
    with _rows_named(node, corpus):
        return plan_of(target, context, corpus.texts, corpus.digests)


def plan_of(
    target: ExtractTarget, context: RunContext, texts: Sequence[str], digests: Sequence[str]
) -> ExtractionPlan:
    """What the feature store lacks for texts, each there once."""
    block_texts = context.runtime.extract.block_texts
    return plan_extraction(
        target, context.home, texts, digests, context.lengths, block_texts=block_texts
    )


@contextmanager
def _rows_named(node: Node, corpus: Corpus) -> Generator[None]:
    """Inside, a text that cannot be read is named by its row: users do not number a corpus' texts."""
    try:
        yield
    except UnreadableTextError as error:
        row = corpus.row_of(error.number, node.run_facts["read_from"])
        if row is None:
            raise
        raise error.named(row) from error
