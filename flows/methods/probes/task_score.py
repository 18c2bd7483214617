"""Score of every layer on labelled tasks, and the layer that dev would choose: `kind: task_score`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import LABELLED, FeatureProbe
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.probes.curves import ProbeCurves
from permafrost.stages.probes.linear_probe import require_scorable
from permafrost.stages.probes.task_score import TaskScoreConfig, probe_task
from permafrost.storage.progress import Progress


class TaskScoreProbe(FeatureProbe):
    """Score of every layer on labelled tasks, and the layer that dev would choose."""

    task_kinds = LABELLED
    single_store = False
    caption = (
        "Score of each layer's vectors alone: of a logistic regression fitted on train where there are "
        "classes, Spearman's correlation of plain cosines where pairs are graded. A ring is the layer "
        "with the best dev score, and its test score is what an automatic choice gives; the other test "
        "scores describe the backbone."
    )

    kind: Literal["task_score"] = "task_score"
    methods: dict[str, TaskScoreConfig] = Field(min_length=1)
    """Curves by name: whose vectors are scored."""

    def measure(
        self,
        config: TaskScoreConfig,
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        """By layer."""
        return probe_task(config, prompt_features, corpus, progress)

    def require(self, config: TaskScoreConfig, corpus: Corpus) -> None:
        """See `require_scorable`."""
        require_scorable(config, corpus)
