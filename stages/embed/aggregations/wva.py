"""Values of all tokens, weighted by the attention row of the readout token: `wva`."""

from typing import Literal

import numpy as np

from permafrost.stages.embed.aggregate import Vectors, attention_weighted, group_means
from permafrost.stages.embed.aggregations.aggregation import Aggregation, Of, batch_size
from permafrost.stages.embed.features import Features
from permafrost.stages.extraction.capture import Index, What
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.progress import Progress


class WeightedValues(Aggregation):
    """Values of all tokens of the input, weighted by the readout token's attention row (Value Aggregation,
    section 6.1). Under `contrastive` it is without the contrast, which is made after the row is stored."""

    kind: Literal["wva"] = "wva"
    heads: Literal["joined", "mean_of_group"] = "joined"
    """All heads of attention side by side, or the mean of those that share a head of values: as wide as the
    values, which is what table 2 prints for grouped queries under a prompt."""

    def what(self, of: Of) -> What:
        """Always values."""
        return "values"

    def stored(self, of: Of) -> tuple[What, ...]:
        """The values and the attention rows of each layer."""
        return ("attention_rows", "values")

    def width(self, of: Of, sizes: BackboneSizes) -> int:
        """The width of all heads side by side, or of the values."""
        n_heads = sizes.n_attn_heads if self.heads == "joined" else sizes.n_kv_heads
        return n_heads * sizes.d_head

    def vectors(self, of: Of, layer: Index, features: Features, progress: Progress) -> Vectors:
        """The vectors of one layer, read batch by batch."""
        joined = weighted_values(layer, features, progress)
        if self.heads == "joined":
            return joined
        return group_means(joined, features.sizes.n_attn_heads, features.sizes.n_kv_heads)


def weighted_values(layer: Index, features: Features, progress: Progress) -> Vectors:
    """See `attention_weighted`, for every text."""
    rows = features.reader(f"attention_rows/{layer}", "all")
    values = features.reader(f"values/{layer}", "all")
    size = batch_size([rows, values])
    parts: list[Vectors] = []
    for (texts, row), (same, value) in zip(rows.in_order(size), values.in_order(size), strict=True):
        assert np.array_equal(texts, same), "two readers of the same texts differ in their batches"
        parts.append(attention_weighted(row, value, features.sizes.n_kv_heads))
        progress.advance(len(texts))
    return np.concatenate(parts)
