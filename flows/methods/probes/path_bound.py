"""Whether HTP's bounds hold on a decoder, and how they spread by depth: `kind: path_bound`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.probes.probe import LiveProbe, own_config
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.sensitivity.config import require_differentiable
from permafrost.stages.sensitivity.path_bound_config import PathBoundConfig
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class PathBoundMethod(PathBoundConfig):
    """One curve, perhaps under a recipe of its own."""

    recipe: str | None = None
    """Its name in the experiment; the probe's if not given."""


class ProbePathBound(Stage):
    """Runs the backbone in float32, with gradients."""

    name = "probe"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.sensitivity.path_bound import measure_path_bound

        target, texts = context.bare_target(node), context.corpus(node.input("corpus")).texts
        config = PathBoundConfig.model_validate(own_config(node))
        backbone = context.backbone.load(target, context.runtime.extract.device, "float32")
        found = measure_path_bound(
            config, backbone, target.recipe, target.max_length, texts, progress
        )
        found.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("curve", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        target, config = context.bare_target(node), PathBoundConfig.model_validate(own_config(node))
        require_differentiable(target.recipe, target.sizes)
        config.read_blocks(target.sizes)
        chosen = choose_texts(context.corpus(node.input("corpus")).texts, config)
        target.encoded(chosen, config.max_tokens)


class PathBoundProbe(LiveProbe):
    """Whether HTP's bounds hold on a decoder, and how they spread. Runs the backbone, with gradients."""

    caption = (
        "How much of the last token's vector, and of the mean, can hang on each token, by the bound of "
        "Hierarchical Token Prepending, and how much does, attention weights held constant. The largest "
        "share of the bound is 1 or less where the bound holds. Evenness: how many tokens alike would have "
        "the entropy of the shares, over the number of tokens. K: the constant before the product of "
        "mixings. Means over texts, of the share of the bound the largest."
    )
    stage = ProbePathBound

    kind: Literal["path_bound"] = "path_bound"
    methods: dict[str, PathBoundMethod] = Field(min_length=1)
    """Curves by name: of which texts, and under which recipe."""
