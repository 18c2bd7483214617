"""No scores: nodes with more linked neighbours come first."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.graphs.relevance import Relevance
from permafrost.storage.progress import Progress


class NoRelevance(Relevance):
    """Every node is as relevant as any other, so that a cut goes by the number of linked neighbours."""

    kind: Literal["none"] = "none"
    runs_a_model: ClassVar[bool] = False
    scores_nodes: ClassVar[bool] = False

    def facts(self) -> dict[str, Any]:
        """The kind alone."""
        return {"kind": self.kind}

    def scores(
        self,
        labels: Sequence[str],
        texts: Sequence[str],
        nodes: Sequence[NDArray[np.int64]],
        progress: Progress,
        device: str,
    ) -> list[NDArray[np.float32]]:
        """Zeros."""
        return [np.zeros(len(some), np.float32) for some in nodes]
