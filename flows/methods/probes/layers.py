"""Scores of every layer alone: `kind: layers`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import FeatureProbe
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.config import required_arrays
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.probes.layer_probe import (
    LayerProbeConfig,
    LayerScores,
    probe_layers,
    require_probed,
)
from permafrost.storage.progress import Progress


class LayerProbe(FeatureProbe):
    """Scores of every layer alone: Spearman correlation of graded pairs, or segment matching."""

    task_kinds = ("similarity", "unlabelled")
    section = "layers"
    loader = LayerScores.load

    kind: Literal["layers"] = "layers"
    methods: dict[str, LayerProbeConfig] = Field(min_length=1)
    """By the name that the curve gets, as in every probe."""

    def curve_arrays(self, curve: str, sizes: BackboneSizes) -> tuple[str, ...]:
        """Those of the method over all layers."""
        return required_arrays(self.methods[curve].embed_config, sizes)

    def measure(
        self,
        config: LayerProbeConfig,
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> LayerScores:
        """By layer."""
        return probe_layers(config, prompt_features, corpus, progress)

    def require(self, config: LayerProbeConfig, corpus: Corpus) -> None:
        """See `require_probed`."""
        require_probed(corpus)
