"""The mean over the span in which token i of n weighs i / (1 + ... + n), as in SGPT: `weighted_mean`."""

from typing import Literal

import numpy as np

from permafrost.stages.embed.aggregate import Vectors, weighted_sum
from permafrost.stages.embed.aggregations.aggregation import PooledRows
from permafrost.storage.ragged import Ragged


class WeightedMeanRow(PooledRows):
    """The mean over the span in which token i of n weighs i / (1 + ... + n), as in SGPT."""

    kind: Literal["weighted_mean"] = "weighted_mean"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        lengths = rows.lengths
        places = np.arange(len(rows.data)) - np.repeat(rows.offsets[:-1], lengths) + 1
        weights = places / np.repeat(lengths * (lengths + 1) / 2, lengths)
        return weighted_sum(rows, weights.astype(np.float32))
