"""GLOT's token graph at several thresholds: `kind: token_graph`."""

from typing import Literal

from pydantic import Field

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.probes.curves import ProbeCurves
from permafrost.stages.probes.linear_probe import require_scorable
from permafrost.stages.probes.token_graph import TokenGraphConfig, probe_token_graph
from permafrost.storage.progress import Progress


class TokenGraphProbe(FeatureProbe):
    """GLOT's token graph at several thresholds."""

    task_kinds = ANY_TASK
    single_store = True
    caption = (
        "GLOT's graph of tokens whose cosine is above tau: share of connected pairs, neighbours of a "
        "token, connected components of a text, tokens without a neighbour. Dev and test are scored "
        "after one untrained step, in which each token becomes the mean of its neighbours and the text "
        "the mean of its tokens: by a logistic regression on classes, by the cosine on graded pairs. At "
        "tau 1 this is the plain mean. A ring is the tau with the best dev score."
    )

    kind: Literal["token_graph"] = "token_graph"
    methods: dict[str, TokenGraphConfig] = Field(min_length=1)
    """Curves by name: at which thresholds, of which layer."""

    def measure(
        self,
        config: TokenGraphConfig,
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> ProbeCurves:
        """By threshold."""
        return probe_token_graph(config, prompt_features, corpus, progress)

    def require(self, config: TokenGraphConfig, corpus: Corpus) -> None:
        """See `require_scorable`."""
        if corpus.task != "unlabelled":
            require_scorable(config, corpus)
