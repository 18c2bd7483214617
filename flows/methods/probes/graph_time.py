"""What GLOT's token graph and training step cost by length: `kind: graph_time`."""

from typing import Any, Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe, MeasureFeatures
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.probes import GraphTimeConfig, ProbeCurves, probe_graph_time
from permafrost.storage.progress import Progress


class GraphTimeProbe(FeatureProbe):
    """What GLOT's token graph and training step cost by length."""

    task_kinds = ANY_TASK
    single_store = True

    kind: Literal["graph_time"] = "graph_time"
    methods: dict[str, GraphTimeConfig] = Field(min_length=1)

    def stage(self) -> type[MeasureFeatures]:
        """As its kind says."""
        return ProbeGraphTime


class ProbeGraphTime(MeasureFeatures):
    """What GLOT's token graph and training step cost by length."""

    @classmethod
    def measure(
        cls,
        config: dict[str, Any],
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        return probe_graph_time(
            GraphTimeConfig.model_validate(config), prompt_features, corpus, progress
        )

    @classmethod
    def require(cls, config: dict[str, Any], corpus: Corpus) -> None:
        """Any corpus will do."""
