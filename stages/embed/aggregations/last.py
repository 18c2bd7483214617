"""The last token of the input, as prompts are read out: `last`."""

from typing import Literal

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations.aggregation import PooledRows
from permafrost.storage.ragged import Ragged


class LastRow(PooledRows):
    """The last token of the input, as prompts are read out."""

    tokens = "all"

    kind: Literal["last"] = "last"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        return rows.data[rows.offsets[1:] - 1]
