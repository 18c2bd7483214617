"""The largest value over the span in each dimension: `max`."""

from typing import Literal

import numpy as np

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import PooledRows
from permafrost.storage.ragged import Ragged


class MaxRow(PooledRows):
    """The largest value over the span in each dimension."""

    kind: Literal["max"] = "max"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        return np.stack([row.max(axis=0) for row in rows])
