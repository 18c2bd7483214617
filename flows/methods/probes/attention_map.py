"""The attention of every token of one text, drawn as a map: `kind: attention_map`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node, Resources
from permafrost.flows.methods.method import Upstream
from permafrost.flows.methods.probes.probe import ANY_TASK, Probe, own_config
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.sensitivity.attention_map_config import AttentionMapConfig, require_one_pass
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


class AttentionMapMethod(AttentionMapConfig):
    """One map, perhaps under a recipe of its own."""

    recipe: str | None = None
    """Its name in the experiment; the probe's if not given."""

    @property
    def config(self) -> AttentionMapConfig:
        """What is measured."""
        fields = {name: getattr(self, name) for name in AttentionMapConfig.model_fields}
        return AttentionMapConfig(**fields)


class AttentionMapProbe(Probe):
    """The attention of every token of one text, drawn as a map. Runs the backbone on that text."""

    task_kinds = ANY_TASK
    single_store = False
    caption = (
        "Where the attention of one text goes, mean over heads: of its own tokens to the first token of the "
        "input and to placeholders, and of the last tokens of sentences to earlier sentences."
    )

    kind: Literal["attention_map"] = "attention_map"
    methods: dict[str, AttentionMapMethod] = Field(min_length=1)
    """Maps by name: of which text, of which blocks, and under which recipe."""

    def recipes(self) -> tuple[str, ...]:
        """Maps may have one each."""
        return tuple(dict.fromkeys(m.recipe or self.recipe for m in self.methods.values()))

    def curve_arrays(self, curve: str, sizes: BackboneSizes) -> tuple[str, ...]:
        """None: stores have the row of the readout token alone."""
        return ()

    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One map on one task."""
        method = self.methods[curve]
        use = upstream.backbone(method.recipe or self.recipe)
        return ProbeAttentionMap.node(
            f"probe {curve} · {task}",
            {
                "kind": self.kind,
                **to_plain(method.config),
                "backbone": {**use.key, "compute_dtype": "float32"},
            },
            (upstream.corpus(task),),
            kinds=(use.recipe,),
            run_facts={**use.run_facts, "curve": curve, "task": task},
            resources=Resources(backbone=True),
        )


class ProbeAttentionMap(Stage):
    """Runs the backbone in float32 on one text."""

    name = "probe"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.sensitivity.attention_map import map_attention

        target, texts = context.bare_target(node), context.corpus(node.input("corpus")).texts
        config = AttentionMapConfig.model_validate(own_config(node))
        backbone = context.backbone.load(target, context.runtime.extract.device, "float32")
        found = map_attention(config, backbone, target.recipe, target.max_length, texts)
        found.curves.save(draft.folder)
        found.map.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("curve", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        target = context.bare_target(node)
        config = AttentionMapConfig.model_validate(own_config(node))
        require_one_pass(target.recipe)
        config.read_blocks(target.sizes)
        if config.text is None:
            choose_texts(context.corpus(node.input("corpus")).texts, config.sample)
