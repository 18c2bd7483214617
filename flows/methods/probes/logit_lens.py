"""Ranks of later tokens by the backbone's own unembedding: `kind: logit_lens`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node, Resources
from permafrost.flows.methods.cell import Upstream
from permafrost.flows.methods.probes.probe import ANY_TASK, Probe, own_config
from permafrost.flows.stage import Stage
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.token_prediction.config import LogitLensConfig
from permafrost.stages.token_prediction.prefixes import require_prefixes
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


class LogitLensProbe(Probe):
    """Ranks of later tokens by the backbone's own unembedding. Runs the backbone."""

    task_kinds = ANY_TASK
    single_store = False
    caption = (
        "Vectors of every layer through the unembedding (`norm: final`: and the final norm before it), "
        "nothing trained: mean reciprocal rank of the token that follows at each distance, over the tokens "
        "of a sample of texts, or over the last ones of drawn `prefixes`. A token ranked worse than the "
        "cutoff counts as not found."
    )

    kind: Literal["logit_lens"] = "logit_lens"
    methods: dict[str, LogitLensConfig] = Field(min_length=1)
    """Curves by name: whose vectors are read, and how far ahead."""

    def curve_arrays(self, curve: str, sizes: BackboneSizes) -> tuple[str, ...]:
        """None: a store keeps the attention row of the readout token only."""
        return ()

    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One curve on one task."""
        use = upstream.backbone(self.recipe)
        return ProbeLogitLens.node(
            f"probe {curve} · {task}",
            {"kind": self.kind, **to_plain(self.methods[curve]), "backbone": use.key},
            (upstream.corpus(task),),
            kinds=(use.recipe,),
            run_facts={**use.run_facts, "curve": curve, "task": task},
            resources=Resources(backbone=True),
        )


class ProbeLogitLens(Stage):
    """Runs the backbone."""

    name = "probe"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.token_prediction.lens import logit_lens

        target, texts = context.bare_target(node), context.corpus(node.input("corpus")).texts
        method = LogitLensConfig.model_validate(own_config(node))
        backbone = context.backbone.load(target, context.runtime.extract.device)
        scores = logit_lens(method, backbone, target.recipe, target.max_length, texts, progress)
        scores.save(draft.folder)
        best = {f"best layer for +{o}": scores.best(o)[0] for o in method.offsets}
        draft.summary = {**{n: node.run_facts[n] for n in ("curve", "task")}, **best}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.extraction.unembedding import require_unembedding
        from permafrost.stages.token_prediction.lens import require_offsets

        target = context.bare_target(node)
        require_prefixes(target.recipe, target.sizes)
        require_unembedding(target.files)
        method = LogitLensConfig.model_validate(own_config(node))
        texts = context.corpus(node.input("corpus")).texts
        require_offsets(method, target, target.recipe, texts)
