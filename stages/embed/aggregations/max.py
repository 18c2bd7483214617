"""The highest number of the span in each place: `max`."""

from typing import Literal

import numpy as np

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import PooledRows
from permafrost.storage.ragged import Ragged


class MaxRow(PooledRows):
    """The highest number of the span in each place."""

    kind: Literal["max"] = "max"

    def pool(self, rows: Ragged) -> Vectors:
        """Of each text."""
        return np.stack([row.max(axis=0) for row in rows])
