"""The mean over the span: `mean`."""

from typing import Literal

from permafrost.stages.embed.aggregate import Vectors, mean_rows
from permafrost.stages.embed.aggregations.aggregation import PooledRows
from permafrost.storage.ragged import Ragged


class MeanRow(PooledRows):
    """The mean over the span."""

    kind: Literal["mean"] = "mean"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        return mean_rows(rows)
