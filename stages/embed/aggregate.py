"""From the rows of a batch of texts to one vector per text: weighted sums, and sums weighted by attention.

T: tokens of one text; H: attention heads; G: key-value heads; R = H / G heads that share values; D: width
of a head.
"""

import numpy as np
from jaxtyping import Float32

from permafrost.storage.ragged import Ragged

Vectors = Float32[np.ndarray, "n _"]
"""One row per text."""


def attention_weighted(rows: Ragged, values: Ragged, n_kv_heads: int) -> Vectors:
    """Each head's attention row times the values of its key-value head, heads side by side.

    Value Aggregation, section 6.1. Head h reads key-value head h // R, as grouped-query attention shares
    them; where the paper's table prints the width of the values for a grouped backbone, this is H * D, and
    `group_means` of it has that width.

    Args:
        rows: attention rows `[n_tokens, H]` over every token of the input.
        values: `[n_tokens, G * D]` of the same tokens.
        n_kv_heads: G.

    Returns:
        `[n_texts, H * D]`, what the block's output projection reads at the readout token.
    """
    n_heads, d_value = rows.data.shape[1], values.data.shape[1]
    out = np.empty((len(rows), n_heads * d_value // n_kv_heads), dtype=np.float32)
    shape_GRD = (n_kv_heads, n_heads // n_kv_heads, d_value // n_kv_heads)
    for i, (row_TH, value_TX) in enumerate(zip(rows, values, strict=True)):
        row_GRT = row_TH.reshape(-1, *shape_GRD[:2]).transpose(1, 2, 0)
        value_GTD = value_TX.reshape(-1, n_kv_heads, shape_GRD[2]).transpose(1, 0, 2)
        np.matmul(row_GRT, value_GTD, out=out[i].reshape(shape_GRD))
    return out


def group_means(joined: Vectors, n_heads: int, n_kv_heads: int) -> Vectors:
    """The mean over the heads that share a key-value head, groups side by side.

    Value Aggregation, table 2, prints the width of the values (1,024 for Qwen3-8B) for weighted values under
    a prompt and says nothing of how 4,096 become so few; the mean is our reading.

    Args:
        joined: `[n_texts, H * D]`, as from `attention_weighted`.
        n_heads: H.
        n_kv_heads: G.

    Returns:
        `[n_texts, G * D]`; where each head has values of its own, `joined`.
    """
    joined_NGRD = joined.reshape(len(joined), n_kv_heads, n_heads // n_kv_heads, -1)
    return joined_NGRD.mean(axis=2).reshape(len(joined), -1)


def weighted_sum(rows: Ragged, weights: Float32[np.ndarray, " t"]) -> Vectors:
    """Per text the sum of its rows times their weights, as one sparse product: `np.add.reduceat` walks
    down columns and is about ten times slower."""
    from scipy import sparse

    places = np.arange(len(rows.data))
    shape = (len(rows), len(rows.data))
    return sparse.csr_array((weights, places, rows.offsets), shape=shape) @ rows.data


def mean_rows(rows: Ragged) -> Vectors:
    """Per text the mean of its rows."""
    lengths = rows.lengths
    sums = weighted_sum(rows, np.ones(len(rows.data), np.float32))
    return sums / lengths[:, None].astype(np.float32)
