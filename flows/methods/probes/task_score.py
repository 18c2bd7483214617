"""Score of every layer on labelled tasks, and the layer that dev would choose: `kind: task_score`."""

from typing import Any, Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import LABELLED, FeatureProbe, MeasureFeatures
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.probes import ProbeCurves, TaskScoreConfig, probe_task, require_scorable
from permafrost.storage.progress import Progress


class TaskScoreProbe(FeatureProbe):
    """Score of every layer on labelled tasks, and the layer that dev would choose."""

    task_kinds = LABELLED
    single_store = False

    kind: Literal["task_score"] = "task_score"
    methods: dict[str, TaskScoreConfig] = Field(min_length=1)

    def stage(self) -> type[MeasureFeatures]:
        """As its kind says."""
        return ProbeTaskScore


class ProbeTaskScore(MeasureFeatures):
    """Score of every layer on labelled tasks, and the layer that dev would choose."""

    @classmethod
    def measure(
        cls,
        config: dict[str, Any],
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        return probe_task(TaskScoreConfig.model_validate(config), prompt_features, corpus, progress)

    @classmethod
    def require(cls, config: dict[str, Any], corpus: Corpus) -> None:
        require_scorable(TaskScoreConfig.model_validate(config), corpus)
