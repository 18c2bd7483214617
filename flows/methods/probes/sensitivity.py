"""How much a text's vector depends on each of its tokens: `kind: sensitivity`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.probes.probe import LiveProbe, own_config
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.sensitivity.config import SensitivityConfig, require_differentiable
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class SensitivityMethod(SensitivityConfig):
    """One curve, perhaps under a recipe of its own."""

    recipe: str | None = None
    """Its name in the experiment; the probe's if not given."""


class ProbeSensitivity(Stage):
    """Runs the backbone in float32, with gradients."""

    name = "probe"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.sensitivity.stage import measure_sensitivity

        target, texts = context.bare_target(node), context.corpus(node.input("corpus")).texts
        config = SensitivityConfig.model_validate(own_config(node))
        backbone = context.backbone.load(target, context.runtime.extract.device, "float32")
        profile = measure_sensitivity(
            config, backbone, target.recipe, target.max_length, texts, progress
        )
        profile.save(draft.folder)
        draft.summary = {**{n: node.run_facts[n] for n in ("curve", "task")}, **profile.summary}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        target, config = (
            context.bare_target(node),
            SensitivityConfig.model_validate(own_config(node)),
        )
        require_differentiable(target.recipe, target.sizes)
        config.read_layer(target.sizes)
        chosen = choose_texts(context.corpus(node.input("corpus")).texts, config)
        target.encoded(chosen, config.max_tokens)


class SensitivityProbe(LiveProbe):
    """How much a text's vector depends on each of its tokens. Runs the backbone, with gradients."""

    caption = (
        "How much of a text's vector hangs on its tokens, by their place in the text: the size of the "
        "derivative by a token's embedding (autograd), and what attention alone lets through along all "
        "paths (the bound of Hierarchical Token Prepending, up to a constant). Both are shares of the "
        "text, 1 being an even share; means over texts."
    )
    stage = ProbeSensitivity

    kind: Literal["sensitivity"] = "sensitivity"
    methods: dict[str, SensitivityMethod] = Field(min_length=1)
    """Curves by name: which readouts, and how exactly."""
