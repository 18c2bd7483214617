"""The attention of every token of one text, drawn as a map: `kind: attention_map`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.probes.probe import LiveProbe, own_config
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.sensitivity.attention_map_config import AttentionMapConfig, require_one_pass
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class AttentionMapMethod(AttentionMapConfig):
    """One map, perhaps under a recipe of its own."""

    recipe: str | None = None
    """Its name in the experiment; the probe's if not given."""


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
        text = config.text
        if text is None:
            (text, *_) = choose_texts(context.corpus(node.input("corpus")).texts, config.sample)
        target.encoded([text], config.max_tokens)


class AttentionMapProbe(LiveProbe):
    """The attention of every token of one text, drawn as a map. Runs the backbone on that text."""

    caption = (
        "Where the attention of one text goes, mean over heads: of its own tokens to the first token of the "
        "input and to placeholders, and of the last tokens of sentences to earlier sentences."
    )
    stage = ProbeAttentionMap

    kind: Literal["attention_map"] = "attention_map"
    methods: dict[str, AttentionMapMethod] = Field(min_length=1)
    """Maps by name: of which text, of which blocks, and under which recipe."""
