"""The base class of sources of corpora with graphs."""

from abc import abstractmethod

from permafrost.stages.corpus.source import TaskSource
from permafrost.stages.graphs.graph_corpus import GraphCorpus


class GraphSource(TaskSource):
    """Where the texts, graphs and cases of a task come from; see `assemble` for how they become a corpus."""

    has_graphs = True

    @classmethod
    def label_given(cls, label: str) -> str:
        """What `build` makes of a node's label: how a label of a triple that a trained model is given is
        read."""
        return label

    @abstractmethod
    def build(self) -> GraphCorpus:
        """Read or generate texts and graphs, check them and number them.

        Raises:
            InputError: the data are faulty; the message says what is wrong, in which row of which file, and
                what to do.
        """
