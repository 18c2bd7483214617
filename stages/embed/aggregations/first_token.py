"""Means that leave out the first token, whose states and values are often unlike all others'.

Source: Value Aggregation prints a mean over all tokens (section 4.1); that a first token which attracts all
attention may carry its hidden-state rows is our reading of its table 1.
"""

from typing import Literal

import numpy as np

from permafrost.storage.ragged import Ragged

FirstToken = Literal["include", "skip"]
"""Whether the first token of the span counts: a leading special token if the span has one, else the first of
the text."""


def chosen_rows(rows: Ragged, first_token: FirstToken) -> Ragged:
    """The rows `[n_tokens, width]` that a mean runs over, at least one of every text.

    Args:
        rows: of the span; every text has at least one.
        first_token: `skip` leaves out a text's first row, unless it is its only one.
    """
    if first_token == "include":
        return rows
    is_left_out = rows.lengths > 1
    is_kept = np.ones(len(rows.data), dtype=np.bool_)
    is_kept[rows.offsets[:-1][is_left_out]] = False
    n_before = np.concatenate([[0], np.cumsum(is_left_out)])
    return Ragged(rows.data[is_kept], rows.offsets - n_before)
