"""The mean of hidden states over the span, of all blocks (Value Aggregation, section 4.1): `hs`."""

from typing import Literal

from permafrost.stages.embed.aggregate import Vectors, mean_rows
from permafrost.stages.embed.aggregations.aggregation import Of, PooledRows
from permafrost.stages.embed.aggregations.first_token import FirstToken, chosen_rows
from permafrost.stages.extraction.capture import What
from permafrost.storage.ragged import Ragged


class HiddenStates(PooledRows):
    """The mean of hidden states over the span, of all blocks (Value Aggregation, section 4.1)."""

    default_layers = "all"

    kind: Literal["hs"] = "hs"
    first_token: FirstToken = "include"
    """`skip` leaves the first token of the span out, except of a text that has no other."""

    def what(self, of: Of) -> What:
        """Always hidden states."""
        if of == "values":
            raise ValueError(
                "hs is the mean of hidden states; for the mean of values use method va"
            )
        return "hidden"

    def pool(self, rows: Ragged) -> Vectors:
        """Pool each text's rows."""
        return mean_rows(chosen_rows(rows, self.first_token))
