"""Anisotropy and effective dimension of every layer: `kind: geometry`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.probes.curves import ProbeCurves
from permafrost.stages.probes.geometry import GeometryConfig, chosen_texts, probe_geometry
from permafrost.storage.progress import Progress


class GeometryProbe(FeatureProbe):
    """Anisotropy and effective dimension of every layer."""

    task_kinds = ANY_TASK
    single_store = True
    caption = (
        "Mean cosine: of vectors of different texts, over all such pairs, 0 for vectors in all "
        "directions alike and 1 for one direction; inside a text, over all pairs of its tokens. "
        "Participation ratio and effective rank: how many directions carry the variance; neither "
        "exceeds the width, or the number of vectors less one."
    )

    kind: Literal["geometry"] = "geometry"
    methods: dict[str, GeometryConfig] = Field(min_length=1)
    """Curves by name: whose vectors are measured."""

    def measure(
        self,
        config: GeometryConfig,
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        """By layer."""
        return probe_geometry(config, prompt_features, corpus, progress)

    def require(self, config: GeometryConfig, corpus: Corpus) -> None:
        """See `chosen_texts`."""
        chosen_texts(corpus.digests, config)
