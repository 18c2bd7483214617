"""The mean of values over the span, of all blocks (Value Aggregation, section 4.1): `va`."""

from typing import Literal

from permafrost.stages.embed.aggregate import Vectors, mean_rows
from permafrost.stages.embed.aggregations.aggregation import Of, PooledRows
from permafrost.stages.extraction.capture import What
from permafrost.storage.ragged import Ragged


class ValueMean(PooledRows):
    """The mean of values over the span, of all blocks (Value Aggregation, section 4.1)."""

    default_layers = "all"

    kind: Literal["va"] = "va"

    def what(self, of: Of) -> What:
        """Always values."""
        return "values"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        return mean_rows(rows)
