"""Inspecting a graph before it runs."""

from collections.abc import Callable
from pathlib import Path

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.graph import Graph, Input, Node
from permafrost.flows.nodes.corpora import CorpusStage
from permafrost.flows.stage import stage_of
from permafrost.stages.corpus.corpus import Corpus
from permafrost.storage.artifacts import parse_ref
from permafrost.storage.progress import Progress, SilentProgress


class Preview(RunContext):
    """The context for plans and checks: unpublished corpora are built in memory, and nothing is written."""

    def __init__(
        self,
        graph: Graph,
        home: Path,
        runtime: RunRuntime,
        progress: Callable[[str], Progress] = lambda label: SilentProgress(),
    ) -> None:
        """Args: progress: of building the corpus with a label."""
        super().__init__(home, runtime)
        self._graph, self._progress = graph, progress

    def load_corpus(self, source: Input) -> Corpus:
        """Load a corpus from its artifact, or build it from its source."""
        if self.artifacts.is_done(parse_ref(source.ref)):
            return super().load_corpus(source)
        node = self._graph[source.ref]
        if node.id not in self.built:
            self.built[node.id] = _corpus_stage(node).build_showing(
                node, self, self._progress(node.label)
            )
        return self.built[node.id]

    def is_known(self, source: Input) -> bool:
        """Whether a corpus is published, or can be built in memory."""
        node = self._graph[source.ref]
        return super().is_known(source) or _corpus_stage(node).known_ahead(node, self)


def _corpus_stage(node: Node) -> type[CorpusStage]:
    stage = stage_of(node)
    assert issubclass(stage, CorpusStage), f"'{node.label}' makes no corpus"
    return stage
