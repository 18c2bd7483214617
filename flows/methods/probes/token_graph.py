"""GLOT's token graph at several thresholds: `kind: token_graph`."""

from typing import Any, Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe, MeasureFeatures
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.probes import (
    ProbeCurves,
    TokenGraphConfig,
    probe_token_graph,
    require_scorable,
)
from permafrost.storage.progress import Progress


class TokenGraphProbe(FeatureProbe):
    """GLOT's token graph at several thresholds."""

    task_kinds = ANY_TASK
    single_store = True

    kind: Literal["token_graph"] = "token_graph"
    methods: dict[str, TokenGraphConfig] = Field(min_length=1)

    def stage(self) -> type[MeasureFeatures]:
        """As its kind says."""
        return ProbeTokenGraph


class ProbeTokenGraph(MeasureFeatures):
    """GLOT's token graph at several thresholds."""

    @classmethod
    def measure(
        cls,
        config: dict[str, Any],
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        return probe_token_graph(
            TokenGraphConfig.model_validate(config), prompt_features, corpus, progress
        )

    @classmethod
    def require(cls, config: dict[str, Any], corpus: Corpus) -> None:
        if corpus.task != "unlabelled":
            require_scorable(TokenGraphConfig.model_validate(config), corpus)
