"""The first token of the span: `first`."""

from typing import Literal

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import PooledRows
from permafrost.storage.ragged import Ragged


class FirstRow(PooledRows):
    """The first token of the span."""

    kind: Literal["first"] = "first"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        return rows.data[rows.offsets[:-1]]
