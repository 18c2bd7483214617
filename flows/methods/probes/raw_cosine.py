"""Correlation of plain cosines with grades, by layer and split (FREEZE!, figure 1): `kind: raw_cosine`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import FeatureProbe
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.probes.curves import ProbeCurves
from permafrost.stages.probes.raw_cosine import RawCosineConfig, probe_raw_cosine
from permafrost.stages.scoring.similarity import require_graded
from permafrost.storage.progress import Progress


class RawCosineProbe(FeatureProbe):
    """Pearson and Spearman of plain cosines with grades, by layer, on train, dev and test."""

    task_kinds = ("similarity",)
    single_store = False
    caption = (
        "Correlation of the cosines of each layer's vectors with the grades of pairs, Pearson's and "
        "Spearman's, on every split. Nothing is trained or chosen."
    )

    kind: Literal["raw_cosine"] = "raw_cosine"
    methods: dict[str, RawCosineConfig] = Field(min_length=1)
    """Curves by name: whose vectors are compared."""

    def measure(
        self,
        config: RawCosineConfig,
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        """By layer."""
        return probe_raw_cosine(config, prompt_features, corpus, progress)

    def require(self, config: RawCosineConfig, corpus: Corpus) -> None:
        """See `require_graded`."""
        require_graded(corpus)
