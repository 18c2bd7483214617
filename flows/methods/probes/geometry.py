"""Anisotropy and effective dimension of every layer: `kind: geometry`."""

from typing import Any, Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe, MeasureFeatures
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.probes import GeometryConfig, ProbeCurves, chosen_texts, probe_geometry
from permafrost.storage.progress import Progress


class GeometryProbe(FeatureProbe):
    """Anisotropy and effective dimension of every layer."""

    task_kinds = ANY_TASK
    single_store = True

    kind: Literal["geometry"] = "geometry"
    methods: dict[str, GeometryConfig] = Field(min_length=1)

    def stage(self) -> type[MeasureFeatures]:
        """As its kind says."""
        return ProbeGeometry


class ProbeGeometry(MeasureFeatures):
    """Anisotropy and effective dimension of every layer."""

    @classmethod
    def measure(
        cls,
        config: dict[str, Any],
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        return probe_geometry(
            GeometryConfig.model_validate(config), prompt_features, corpus, progress
        )

    @classmethod
    def require(cls, config: dict[str, Any], corpus: Corpus) -> None:
        chosen_texts(corpus.digests, GeometryConfig.model_validate(config))
