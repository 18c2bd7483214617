"""What GLOT's token graph and training step cost by length: `kind: graph_time`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.probes import GraphTimeConfig, ProbeCurves, probe_graph_time
from permafrost.storage.progress import Progress


class GraphTimeProbe(FeatureProbe):
    """What GLOT's token graph and training step cost by length."""

    task_kinds = ANY_TASK
    single_store = True
    caption = (
        "Milliseconds for one text of so many tokens, the median of several measurements on the machine "
        "where this stage ran: making GLOT's graph, and a whole training step of GLOT, which makes it "
        "too; and the connected share of all pairs. The texts are stored token states of the corpus, "
        "one after the other, cut into pieces."
    )

    kind: Literal["graph_time"] = "graph_time"
    methods: dict[str, GraphTimeConfig] = Field(min_length=1)

    def measure(
        self,
        config: GraphTimeConfig,
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        """By length."""
        return probe_graph_time(config, prompt_features, corpus, progress)
