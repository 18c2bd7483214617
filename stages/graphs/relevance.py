"""How relevant a node is to a text: the base class of the kinds that score it."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.kinds import Category, Kind
from permafrost.storage.progress import Progress


class Relevance(Kind):
    """How nodes are scored; a graph is cut to the most relevant ones, and the scores are kept in it."""

    runs_a_model: ClassVar[bool] = True
    """Whether scoring takes a model, so that plans and checks do without."""
    scores_nodes: ClassVar[bool] = True
    """Whether the scores say anything, so that a model may read them."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What enters the key of a corpus: a model is named by the digests of its files.

        Raises:
            InputError: there is no such model.
        """

    @abstractmethod
    def scores(
        self,
        labels: Sequence[str],
        texts: Sequence[str],
        nodes: Sequence[NDArray[np.int64]],
        progress: Progress,
        device: str,
    ) -> list[NDArray[np.float32]]:
        """The relevance `[n]` of each text's nodes, finite; more is more relevant.

        Args:
            labels: of every node of the knowledge graph.
            texts: t of them.
            nodes: t arrays `[n]` of numbers of labels.
            progress: told how many are scored.
            device: where a model runs, by torch's name, or `auto`.

        Raises:
            InputError: the model cannot score.
        """


RELEVANCES = Category("relevance", Relevance, "permafrost.stages.graphs.relevances")
RelevanceConfig = Annotated[Relevance, RELEVANCES.field_or_name()]
"""Any relevance, by its `kind`, or by its name alone."""
