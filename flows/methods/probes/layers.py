"""Scores of every layer alone: `kind: layers`."""

from typing import Any, Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import FeatureProbe, MeasureFeatures
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures, required_arrays
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.probes.layer_probe import (
    LayerProbeConfig,
    LayerScores,
    probe_layers,
    require_probed,
)
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


class LayerProbe(FeatureProbe):
    """Scores of every layer alone: Spearman correlation of graded pairs, or segment matching."""

    task_kinds = ("similarity", "unlabelled")

    kind: Literal["layers"] = "layers"
    methods: dict[str, LayerProbeConfig] = Field(min_length=1)
    """By the name that the curve gets, as in every probe."""

    def curve_arrays(self, curve: str, sizes: BackboneSizes) -> tuple[str, ...]:
        """Those of the method over all layers."""
        return required_arrays(self.methods[curve].embed_config, sizes)

    def key_config(self, curve: str) -> dict[str, Any]:
        """Without a kind: this was the first kind there was."""
        return to_plain(self.methods[curve])

    def stage(self) -> type[MeasureFeatures]:
        """Scores layer by layer."""
        return ProbeLayers


class ProbeLayers(MeasureFeatures):
    """Scores every layer."""

    @classmethod
    def measure(
        cls,
        config: dict[str, Any],
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> LayerScores:
        return probe_layers(
            LayerProbeConfig.model_validate(config), prompt_features, corpus, progress
        )

    @classmethod
    def require(cls, config: dict[str, Any], corpus: Corpus) -> None:
        require_probed(corpus)
